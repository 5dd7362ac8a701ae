"""python -m tests.write_examples: send every documented example to the service, and write the
answers to service/api/examples.json.

Run it after the default model or the form of an answer has changed;
tests/service/api/test_documentation.py compares both.
"""

import json

from fastapi.testclient import TestClient

from service.api.examples import ANSWERS
from service.app import create_app
from service.settings import Settings
from tests.documentation import ask, examples_of

DECIMALS = 4


def rounded(value):
    if isinstance(value, float):
        return round(value, DECIMALS)
    if isinstance(value, list):
        return [rounded(each) for each in value]
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return value


def main():
    with TestClient(create_app(Settings()), "http://localhost") as client:
        answers = {}
        for path, name, body in examples_of(client.get("/openapi.json").json()):
            answers.setdefault(path, {})[name] = rounded(ask(client, path, body))
    ANSWERS.write_text(json.dumps(answers, ensure_ascii=False, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
