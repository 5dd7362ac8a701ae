"""python -m tests.write_examples: send every documented example to the service, and write the
answers to service/api/answering/examples.json and the pictures to docs/mechanisms/.

Run it after the default model or the form of an answer has changed;
tests/service/api/test_documentation.py and tests/test_mechanisms.py compare both.
"""

import json
from pathlib import Path

from fastapi.testclient import TestClient

from service.api.answering.examples import ANSWERS
from service.app import create_app
from service.settings.settings import Settings
from tests.documentation import answer_to, ask, curl_calls, examples_of

DOCS = Path(__file__).parent.parent / "docs"
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
        for call in curl_calls((DOCS / "mechanisms.md").read_text(encoding="utf-8")):
            if call.file:
                picture = answer_to(client, call).raise_for_status().content
                (DOCS / "mechanisms" / call.file).write_bytes(picture)
    ANSWERS.write_text(json.dumps(answers, ensure_ascii=False, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
