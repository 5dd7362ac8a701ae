"""The OpenAPI document gives generators of clients a type for all that is sent and answered."""

import json

import pytest
from jsonschema import Draft202012Validator

from service.formats.writers import WRITERS
from tests.documentation import events_of

# Objects with any keys, by their nature
FREE = {
    ("ModelCard", "origin"),
    ("AttentionRequest", "glossary"),
    ("AttributionRequest", "glossary"),
    ("DecodeRequest", "glossary"),
    ("LanguageCodes", "target_lists"),
}


def walk(schema, *path):
    """Yield every schema in a schema, with its path."""
    yield path, schema
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for variant in schema.get(key, []):
            yield from walk(variant, *path)
    for name, field in schema.get("properties", {}).items():
        yield from walk(field, *path, name)
    for key in ("items", "contentSchema"):
        if key in schema:
            yield from walk(schema[key], *path)


def test_every_value_has_a_type(document):
    for name, component in document["components"]["schemas"].items():
        for path, schema in walk(component, name):
            kind = schema.get("type")
            known = {"$ref", "anyOf", "oneOf", "const", "enum"} & schema.keys()
            assert known or kind, path
            assert kind != "array" or "items" in schema, path
            assert kind != "object" or "properties" in schema or path in FREE, path


def test_every_reference_leads_to_a_component(document):
    names = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    text = json.dumps(document)
    found = {part.split('"')[0] for part in text.split('"$ref": "')[1:]}
    assert found <= names


def test_every_answer_has_a_schema(document):
    for path, methods in document["paths"].items():
        for operation in methods.values():
            for form, content in operation["responses"]["200"]["content"].items():
                assert content.get("schema"), (path, form)
    content = document["paths"]["/v1/attention"]["post"]["responses"]["200"]["content"]
    assert content.keys() == WRITERS.keys()
    binary = {form for form, each in content.items() if each["schema"].get("format") == "binary"}
    assert binary == {"application/npz", "application/safetensors", "image/png"}


@pytest.mark.parametrize("how", [{}, {"beam_size": 2}, {"temperature": 1.0, "seed": 1}])
def test_events_are_as_the_document_says(client, document, how):
    """With their data, as another validator reads it."""
    body = {"model": "g2p-en", "source": "heed", "split": "sentences", "stream": True, **how}
    events = events_of(client.post("/v1/decode", json=body).text)
    content = document["paths"]["/v1/decode"]["post"]["responses"]["200"]["content"]
    shown = content["text/event-stream"]["schema"]
    by_name = {
        each["properties"]["event"]["const"]: each
        for each in (document["components"]["schemas"][one["$ref"][21:]] for one in shown["oneOf"])
    }
    assert by_name.keys() == {"token", "beam", "done", "error"}
    for name, data in events:
        validate(document, shown, {"event": name, "data": json.dumps(data)})
        validate(document, by_name[name]["properties"]["data"]["contentSchema"], data)


def validate(document, schema, value):
    Draft202012Validator({**schema, "components": document["components"]}).validate(value)
