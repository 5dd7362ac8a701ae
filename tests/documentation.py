"""Read the examples of the OpenAPI document and the curl lines of Markdown, and send them."""

import json
import re
import shlex
from typing import NamedTuple

GET = "get"  # name of the only example of a GET endpoint
HOST = "localhost:8000"


class Call(NamedTuple):
    """A curl line, and the answer that is shown below it; … matches anything."""

    path: str
    content: str | None  # None: GET
    answer: str


def curl_calls(markdown):
    """Yield the curl lines of console blocks."""
    for block in re.findall(r"^```console\n(.*?)^```", markdown, re.M | re.S):
        for command, answer in re.findall(r"^\$ (curl .*)\n((?:(?!\$ ).*\n)+)", block, re.M):
            words = shlex.split(command)
            (url,) = (word for word in words if word.startswith(HOST))
            content = words[words.index("-d") + 1] if "-d" in words else None
            yield Call(url.removeprefix(HOST), content, answer)


def assert_answered_as_shown(client, call):
    if call.content is None:
        found = client.get(call.path).text
    else:
        headers = {"content-type": "application/json"}
        found = client.post(call.path, content=call.content, headers=headers).text
    pattern = ".*".join(re.escape(part) for part in compact(call.answer).split("…"))
    assert re.fullmatch(pattern, compact(found)), found


def compact(text):
    """Remove white space outside the strings of a JSON text."""
    return re.sub(r'("(?:[^"\\]|\\.)*")|\s+', lambda found: found[1] or "", text)


def examples_of(document):
    """Yield (path, name, body) of every example whose answer is JSON or a stream."""
    for path, methods in document["paths"].items():
        if "post" in methods:
            content = methods["post"]["requestBody"]["content"]["application/json"]
            for name, example in content["examples"].items():
                yield path, name, example["value"]
        elif "application/json" in methods["get"]["responses"]["200"]["content"]:
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
