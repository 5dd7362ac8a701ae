"""An optional field of a body may be null, which means that it is left out."""

import pytest

from tests.service.api.bodies import BODIES, GOOD


def bodies_of(document):
    for path, methods in document["paths"].items():
        for operation in methods.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                yield path, document["components"]["schemas"][content["schema"]["$ref"][21:]]


def test_an_optional_field_of_a_body_may_be_null_and_has_no_default_in_its_schema(document):
    """openapi-typescript would require the field, and openapi-python-client always send it."""
    bodies = dict(bodies_of(document))
    bodies["attention"] = document["components"]["schemas"]["AttentionSelection"]
    assert len(bodies) == 9
    for path, body in bodies.items():
        for name, field in body["properties"].items():
            assert "default" not in field, (path, name)
            optional = name not in body.get("required", [])
            assert ({"type": "null"} in field.get("anyOf", [])) is optional, (path, name)


@pytest.mark.parametrize(
    ("path", "body"),
    [*BODIES.items(), ("/v1/attention", BODIES["/v1/score"]), ("/v1/attend", GOOD)],
)
def test_null_is_as_good_as_nothing(client, document, path, body):
    """Some generated clients send it for every field that is not given."""
    fields = dict(bodies_of(document))[path]
    sent = dict.fromkeys(fields["properties"]) | body
    named = {} if path == "/v1/attend" else {"model": "g2p-en"}
    answer = client.post(path, json=sent | named)
    assert answer.status_code == 200, answer.text
    assert answer.json() == client.post(path, json=body | named).json()


def test_null_is_refused_where_a_field_is_required(client):
    answer = client.post("/v1/decode", json={"model": "g2p-en", "source": None})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/source")
