"""The answers that /docs shows to the examples of each endpoint, and what it shows of other models.

The file of an endpoint has its examples, which work unchanged with the default model. Their answers
are in examples.json, which tests/write_examples.py writes.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from service.api.reading.languages import first_pair
from service.bundle.languages import Slot
from service.bundle.manifest import Manifest
from service.settings.settings import DEFAULT_BUNDLE

Examples = dict[str, Any]
DEFAULT = DEFAULT_BUNDLE.name
NEW = "opus-mt-en-fr"  # a model to load
SIMPLE = "simple"  # the example that shows a body for most text models
ANSWERS = Path(__file__).with_name("examples.json")
INTRODUCTION = Path(__file__).with_name("introduction.md").read_text(encoding="utf-8")


def show_answers(document: dict[str, Any]) -> None:
    """Add the answers to a finished OpenAPI document, since FastAPI would drop every null. Name the
    default model in paths."""
    name_models(document, DEFAULT)
    for path, answers in json.loads(ANSWERS.read_text(encoding="utf-8")).items():
        (operation,) = document["paths"][path].values()
        content = operation["responses"]["200"]["content"]
        for name, answer in answers.items():
            streamed = isinstance(answer, list)
            media_type = content["text/event-stream" if streamed else "application/json"]
            value = "".join(map(event_text, answer)) if streamed else answer
            media_type.setdefault("examples", {})[name] = {"value": value}


def name_models(document: dict[str, Any], name: str) -> None:
    """Set the example of each name in a path: a model that is served, or one to load."""
    for path, operations in document["paths"].items():
        for operation in operations.values():
            for parameter in operation.get("parameters", []):
                if parameter["in"] == "path" and parameter["name"] != "task":
                    parameter["example"] = NEW if path.endswith("/load") else name


def fit_to_models(document: dict[str, Any], manifests: Sequence[Manifest]) -> dict[str, Any]:
    """Change a finished OpenAPI document to show what works with these models, and return it.

    If the default model is one of several, its examples name it. Without it, each endpoint gets
    only its example SIMPLE, for the first model, and no answers: the vocabulary of that model may
    lack the words of the others.
    """
    names, simple = [manifest.name for manifest in manifests], take_simple(document)
    if names in ([DEFAULT], []):
        return document
    name_models(document, DEFAULT if DEFAULT in names else names[0])
    for path, body in simple.items():
        operation = document["paths"][path]["post"]
        shown = operation["requestBody"]["content"]["application/json"]
        if DEFAULT in names:
            for example in shown["examples"].values():
                example["value"] = {"model": DEFAULT, **example["value"]}
        else:
            value = {"model": names[0], **body, **languages_of(manifests[0], path)}
            shown["examples"] = {SIMPLE: {"summary": f"A body for {names[0]}", "value": value}}
            remove_answers(operation)
    for path in ("/v1/models", "/v1/models/{name}", "/readyz/{name}"):
        remove_answers(document["paths"][path]["get"])
    if "/translate" in document["paths"] and (pair := first_pair(manifests)):
        operation = document["paths"]["/translate"]["post"]
        shown = operation["requestBody"]["content"]["application/json"]["examples"]
        for example in shown.values():
            example["value"] |= dict(zip(("source", "target"), pair, strict=True))
    return document


def take_simple(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Remove the example SIMPLE of each path that has one, and return their bodies."""
    found: dict[str, dict[str, Any]] = {}
    for path, operations in document["paths"].items():
        content = operations.get("post", {}).get("requestBody", {}).get("content", {})
        examples = content.get("application/json", {}).get("examples", {})
        if SIMPLE in examples:
            found[path] = examples.pop(SIMPLE)["value"]
    return found


def languages_of(manifest: Manifest, path: str) -> dict[str, str]:
    """Return a language of each side that has a choice, where the endpoint takes languages."""
    if path == "/v1/detokenize":
        return {}
    codes = {slot: manifest.languages.of(slot) for slot in get_args(Slot)}
    return {slot: next(iter(found)) for slot, found in codes.items() if found}


def remove_answers(operation: dict[str, Any]) -> None:
    for content in operation["responses"]["200"]["content"].values():
        content.pop("examples", None)


def event_text(named: list[Any]) -> str:
    name, data = named
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"
