"""Read the examples in the OpenAPI document, and send them to the service."""

import json

GET = "get"  # name of the only example of a GET endpoint


def examples_of(document):
    """Yield (path, name, body) of every example."""
    for path, methods in document["paths"].items():
        if "post" in methods:
            content = methods["post"]["requestBody"]["content"]["application/json"]
            for name, example in content["examples"].items():
                yield path, name, example["value"]
        elif "get" in methods:
            yield path, GET, None


def ask(client, path, body):
    """Return the document that is answered; of a stream, its events as [name, document]."""
    if body is None:
        return client.get(path.replace("{name}", "g2p-en")).json()
    answer = client.post(path, json=body)
    if answer.headers["content-type"].startswith("text/event-stream"):
        return events_of(answer.text)
    return answer.json()


def events_of(text):
    events = [event.split("\n") for event in text.split("\n\n") if event.startswith("event")]
    return [
        [name.removeprefix("event: "), json.loads(data.removeprefix("data: "))]
        for name, data in events
    ]
