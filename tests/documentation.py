"""Read the examples of the OpenAPI document, and curl lines and programs of Markdown."""

import json
import os
import re
import shlex
from itertools import pairwise
from typing import NamedTuple

GET = "get"  # name of the only example of a GET endpoint
HOST = "localhost:8000"
# A line, or several: those that end in a backslash or within quotes go on.
COMMAND = re.compile(r"^\$ ((?:\\\n|'[^']*'|[^'\n])*)\n((?:(?!\$ ).*\n)*)", re.M)
DECIMAL = re.compile(r"\d+\.\d+")


class Call(NamedTuple):
    """A curl line, and the answer that is shown below it; … matches anything."""

    path: str
    content: str | None
    answer: str  # "" if curl writes the answer to a file
    method: str
    headers: dict[str, str]  # in which $NAME stands for a variable of the environment
    file: str | None  # that curl writes the answer to


def curl_calls(markdown):
    """Yield the curl lines of console blocks."""
    for command, shown in commands(markdown):
        if command.startswith("curl "):
            words = shlex.split(command)
            (url,) = (word for word in words if word.startswith(HOST))
            content, method = after(words, "-d"), after(words, "-X")
            yield Call(
                url.removeprefix(HOST),
                content,
                shown,
                method or ("GET" if content is None else "POST"),
                dict(header.split(": ") for flag, header in pairwise(words) if flag == "-H"),
                after(words, "-o"),
            )


def after(words, flag):
    """Return the word after a flag, None if the flag is missing."""
    return words[words.index(flag) + 1] if flag in words else None


def commands(markdown):
    """Yield each command of console blocks, its lines joined, and what is shown below it."""
    for block in re.findall(r"^```console\n(.*?)^```", markdown, re.M | re.S):
        for command, shown in COMMAND.findall(block):
            yield re.sub(r"\\\n *", "", command), shown


def programs(markdown, language):
    """Yield each block of code in a language, and what is shown below it as its output."""
    yield from re.findall(
        rf"^```{language}\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", markdown, re.M | re.S
    )


def assert_shown(found, shown):
    """Fail unless the text is as shown, where … stands for anything."""
    pattern = ".*".join(map(re.escape, shown.split("…")))
    assert re.fullmatch(pattern, found, re.S), found


def answer_to(client, call):
    headers = {name: os.path.expandvars(value) for name, value in call.headers.items()}
    return client.request(call.method, call.path, content=call.content, headers=headers)


def assert_answered_as_shown(client, call):
    found = answer_to(client, call)
    if call.answer:
        assert_shown(compact(found.text), compact(call.answer))
    else:
        assert found.status_code == 200, found.text
        assert found.headers["content-type"] == call.headers["accept"]


def split_decimals(text):
    """Return a text without its decimals, and the decimals."""
    return DECIMAL.sub("", text), [float(each) for each in DECIMAL.findall(text)]


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
    answer = client.post(path, json=body, headers={"X-Request-Id": "example"})
    if answer.headers["content-type"].startswith("text/event-stream"):
        return events_of(answer.text)
    return answer.json()


def events_of(text):
    """Return [name, document] of each server-sent event, as clients read them: without comments."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line[:1] != ":")
        if fields:
            assert fields.keys() == {"event", "data"}
            found.append([fields["event"], json.loads(fields["data"])])
    return found
