"""Bad and unusual requests, keys, limits and probes of the Open Inference Protocol."""

import asyncio
import gzip
import json
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
from anyio import CapacityLimiter
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from service.api.protocols.open_inference.models import TASKS
from service.settings.settings import DEFAULT_BUNDLE
from tests.conftest import TINY, opened
from tests.service.api.bodies import tensor_of
from tests.service.http.asgi import messages_of, scope_of

INFER = "/v2/models/g2p-en/infer"
REQUEST = {"inputs": [tensor_of("a")]}
HEADER_LENGTH = "Inference-Header-Content-Length"


@pytest.fixture(scope="module")
def client():
    chosen = {"api_keys": "k" * 16, "protocols": ["open-inference", "libretranslate"]}
    with opened(DEFAULT_BUNDLE, TINY, **chosen) as client:
        client.headers["Authorization"] = f"Bearer {'k' * 16}"
        yield client


def test_metadata_needs_a_key_and_probes_need_none(client):
    def status_of(path):
        return client.get(path, headers={"Authorization": ""}).status_code

    probes = ["/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/g2p-en/ready"]
    assert [status_of(path) for path in probes] == [200, 200, 200, 200]
    others = ("tiny", "ready", "tiny/versions/ready", "tiny/versions/1/ready")
    assert [status_of(f"/v2/models/{each}") for each in others] == [401, 401, 401, 401]
    assert client.post(INFER, json=REQUEST, headers={"Authorization": ""}).status_code == 401


def test_probes_that_succeed_leave_no_line(client):
    version = client.get("/v2/models/tiny").json()["versions"][0]
    models = ("/v2/models/tiny/ready", f"/v2/models/tiny/versions/{version}/ready")
    with capture_logs() as logged:
        for path in ("/health", "/v2/health/live", "/v2/health/ready", *models):
            assert client.get(path).status_code == client.head(path).status_code == 200
    assert logged == []
    with capture_logs() as logged:
        assert client.get("/v2/models/none/ready").status_code == 404
    assert [line["route"] for line in logged] == ["/v2/models/{name}/ready"]


@pytest.fixture
def no_models(client):
    models = client.app.state.service.registry.served
    known = dict(models)
    models.clear()
    yield
    models.update(known)


@pytest.mark.parametrize("path", ["/v2/health/ready", "/v2/models/tiny/ready"])
def test_a_service_without_models_is_not_ready(client, path, no_models):
    answer = client.get(path)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert list(answer.json()) == ["error"]


@pytest.mark.parametrize(
    ("content", "coding", "status", "words"),
    [
        (gzip.compress(b" " * (1 << 21), mtime=0), "gzip", 413, "1048576 bytes when decompressed"),
        (gzip.compress(b"{}", mtime=0)[:-9], "gzip", 400, "one whole gzip or zlib stream"),
        (gzip.compress(b"{}", mtime=0) * 2, "gzip", 400, "one whole gzip or zlib stream"),
        (b"{}", "deflate", 400, "cannot be decompressed"),
        (zlib.compress(b"{}"), "deflate", 400, "/inputs is required"),
        (b"{}", "br", 415, "content-encoding br is not supported"),
    ],
)
def test_what_cannot_be_decompressed_is_refused(client, content, coding, status, words):
    answer = client.post(INFER, content=content, headers={"Content-Encoding": coding})
    assert answer.status_code == status
    assert words in answer.json()["error"]


def test_a_small_compressed_body_does_not_wait_for_large_ones(client):
    content = gzip.compress(json.dumps(REQUEST).encode())
    body = {"type": "http.request", "body": content, "more_body": False}
    headers = [(b"content-encoding", b"gzip"), (b"authorization", b"Bearer " + b"k" * 16)]

    async def ask():
        async with client.app.state.service.classes[-1]:  # as if a large body were being read
            asking = messages_of(client.app, scope_of(path=INFER, headers=headers), [body])
            return await asyncio.wait_for(asking, 10)

    assert client.portal.call(ask)[0]["status"] == 200


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_whether_outputs_are_binary_is_true_or_false(client, value):
    answer = client.post(INFER, json={**REQUEST, "parameters": {"binary_data_output": value}})
    assert answer.status_code == 400
    assert answer.json() == {"error": "/binary_data_output must be true or false"}


def test_all_outputs_are_binary_but_those_that_say_otherwise(client):
    """Triton's client always says which; other clients name an output alone."""
    named = [{"name": "text"}, {"name": "score", "parameters": {"binary_data": False}}]
    body = {**REQUEST, "parameters": {"binary_data_output": True}, "outputs": named}
    answer = client.post(INFER, json=body)
    header = json.loads(answer.content[: int(answer.headers[HEADER_LENGTH])])
    assert [("data" in each) for each in header["outputs"]] == [False, True]


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"source_ids": [[4, 5]], "source_length": [3]}, "/source_length/0 is 3 but"),
        ({"source_ids": [[4, 5]], "source_length": [1, 1]}, "holds 2 lengths for 1 sequences"),
        ({"source_length": [1]}, "/source_length has no effect without source_ids"),
        ({"source": ["a"], "source_ids": [[4]]}, "/source_ids cannot be combined with source"),
        ({"source_ids": [[4, 5], [4, 0]]}, "/source_ids/1 ends with 0, which is padding: send"),
        ({"source_ids": [[4, 5], [4, 10**6]]}, "/source_ids/1/1 is 1000000"),
    ],
)
def test_ids_and_lengths_that_do_not_fit_are_refused(client, inputs, words):
    tensors = [
        {
            "name": name,
            "datatype": "BYTES" if name == "source" else "INT64",
            "shape": list(np.shape(data)),
            "data": data,
        }
        for name, data in inputs.items()
    ]
    answer = client.post(INFER, json={"inputs": tensors})
    assert answer.status_code == 400
    assert words in answer.json()["error"]


def test_a_score_needs_a_target_and_says_which_inputs_hold_it(client):
    answer = client.post("/v2/models/tiny.score/infer", json=REQUEST)
    assert answer.status_code == 400
    assert "/target is required: send target (BYTES, one axis) or target_ids" in answer.text


ELSEWHERE = ["words", "source_share", "stream", "partial", "top_log_probs"]
UNFIT = ["required", "glossary", "source_final", "hold"]  # their answers have no tensor
NOT_HERE = [
    *[("g2p-en", name, "send it to /v1/decode") for name in (*ELSEWHERE, *UNFIT)],
    ("g2p-en", "attention", "use the model g2p-en.attention"),
    ("g2p-en.attention", "partial", "send it to /v1/attention"),
    ("g2p-en.encode", "partial", "send it to /v1/encode"),
    ("g2p-en.encode", "encoding", "set binary_data_output to true for outputs in binary"),
]


@pytest.mark.parametrize(("model", "name", "instead"), NOT_HERE)
@pytest.mark.parametrize("inside", [True, False])
def test_a_parameter_whose_answer_is_no_tensor_says_where_to_send_it(
    client, model, name, instead, inside
):
    fields = {"parameters": {name: True}} if inside else {name: True}
    answer = client.post(f"/v2/models/{model}/infer", json={**REQUEST, **fields})
    assert answer.status_code == 400
    assert answer.json() == {"error": f"/{name} is not a parameter here: {instead}"}


def test_the_page_and_these_tests_list_every_parameter_that_is_absent():
    absent = {(suffix, name) for suffix, task in TASKS.items() for name in task.absent}
    assert absent == {(model.removeprefix("g2p-en"), name) for model, name, _ in NOT_HERE}
    page = Path("docs/protocols.md").read_text()
    (listed,) = re.findall(
        r"^- \*\*Absent parameters\.\*\*(.*?)^- ", page, re.DOTALL | re.MULTILINE
    )
    assert {name for _, name in absent} <= set(re.findall(r"`(\w+)`", listed))


@pytest.mark.parametrize(
    ("suffix", "output", "parameters", "advice"),
    [
        (".attention", "alignment", {"attention": {}}, "set alignment in attention, such as to"),
        (".attention", "encoder", {}, "add encoder to kinds in attention"),
        (
            ".attention",
            "cross_rows",
            {"attention": {"kinds": ["encoder"]}},
            "add cross to kinds in",
        ),
        (".encode", "hidden", {"pooling": "mean"}, "set pooling to none"),
        (".encode", "embedding", {}, "set pooling to mean, max, first or last"),
        ("", "tokens", {"split": "sentences"}, "omit split and markup"),
        ("", "length", {"markup": "xml"}, "omit split and markup"),
        ("", "drafted", {}, "send a draft, and omit split and markup"),
        ("", "accepted", {"draft": "source", "split": "sentences"}, "send a draft, and omit split"),
    ],
)
def test_an_output_of_other_requests_says_what_brings_it(
    client, suffix, output, parameters, advice
):
    path = f"/v2/models/g2p-en{suffix}"
    assert output in [each["name"] for each in client.get(path).json()["outputs"]]
    body = {**REQUEST, "parameters": parameters, "outputs": [{"name": output}]}
    answer = client.post(f"{path}/infer", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(
        f"/{output} is not an output of this request: {advice}"
    )


def test_an_unknown_path_is_told_those_of_the_protocol(client):
    told = client.get("/v2/repository/index").json()["error"]
    assert "POST /v2/models/{name}/infer" in told
    assert "/v1/" not in told
    assert "/docs" not in told


UNEVEN = ["a" * 40, *["a"] * 30]  # alone they are short, padded to the longest they are not
PADDED = tensor_of(*UNEVEN)
D_MODEL = 192


def test_limits_count_what_padding_adds(client, limit):
    limit(max_answer_bytes=4 * D_MODEL * (40 + 30))
    assert client.post("/v1/encode", json={"model": "g2p-en", "source": UNEVEN}).status_code == 200
    answer = client.post("/v2/models/g2p-en.encode/infer", json={"inputs": [PADDED]})
    assert answer.status_code == 413
    assert f"could take {4 * D_MODEL * 40 * 31} bytes" in answer.json()["error"]


def test_writing_what_padding_adds_waits_for_a_core(client, monkeypatch):
    monkeypatch.setattr("service.api.answering.respond.LARGE_ANSWER", D_MODEL * 40 * 30)
    busy = CapacityLimiter(1)
    client.portal.call(busy.acquire_on_behalf_of, "another request")
    monkeypatch.setattr(client.app.state.service, "cores", busy)
    short = {"X-Request-Timeout": "0.5"}
    body, path = {"model": "g2p-en", "source": UNEVEN}, "/v2/models/g2p-en.encode/infer"
    assert client.post("/v1/encode", json=body, headers=short).status_code == 200
    assert client.post(path, json={"inputs": [PADDED]}, headers=short).status_code == 504


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=3), each),
    max_leaves=4,
)
FIELDS = ("id", "parameters", "inputs", "outputs", "name", "shape", "datatype", "data")
OBJECTS = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4)
BODIES = st.builds(
    lambda top, inputs: {**REQUEST, **top, **({"inputs": inputs} if inputs else {})},
    OBJECTS,
    st.lists(st.builds(lambda change: {**REQUEST["inputs"][0], **change}, OBJECTS), max_size=2),
)


@settings(max_examples=40)
@given(BODIES, st.binary(max_size=9), st.integers(0, 400) | st.none())
def test_any_body_is_answered_or_refused_in_the_form_of_the_protocol(client, body, rest, length):
    """`length` is that of the JSON if it is None."""
    text = json.dumps(body).encode()
    header = len(text) if length is None else length
    answer = client.post(INFER, content=text + rest, headers={HEADER_LENGTH: str(header)})
    assert answer.status_code in (200, 400, 413)
    assert "outputs" in answer.json() or list(answer.json()) == ["error"]
