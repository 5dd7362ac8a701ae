"""The Open Inference Protocol, compared with our own endpoints: what the stock Triton client reads
has the bits of their answers, and errors have their words."""

import gzip
import json
import re
import subprocess
import sys
import zlib
from pathlib import Path

import httpx2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from service.api.inference_models import TASKS
from service.api.tensors import DTYPES
from service.settings import DEFAULT_BUNDLE
from tests.conftest import TINY, opened, serving
from tests.documentation import HOST, programs

DOCS = Path("docs/protocols.md")
CLIENT = Path("tests/clients/open_inference.py")
WORDS = ["heed", "attention", "a"]
TARGETS = ["HH IY1 D", "AH0 T EH1 N SH AH0 N", "AH0"]
IDS = [[4, 5, 6], [7]]
TEXTS = {"source": ["BYTES", WORDS]}
PAIRS = {**TEXTS, "target": ["BYTES", TARGETS]}
PADDED = {"source_ids": ["INT64", [[4, 5, 6], [7, 0, 0]]], "source_length": ["INT64", [3, 1]]}
ALL_KINDS = {"kinds": ["cross", "decoder", "encoder"]}
BEAMS = {"beam_size": 4, "num_hypotheses": 3}
SAMPLES = {"temperature": 1.5, "seed": 7, "num_hypotheses": 2, "top_k": 9}
MEAN = {"pooling": "mean", "normalize": True, "dimensions": 7}
REDUCED = {"reduce_heads": "mean", "layers": [-1], "alignment": "argmax"}
# name -> the model's suffix, its inputs, the parameters, and the fields of our own request
CALLS = {
    "greedy": ("", TEXTS, {}, {"source": WORDS}),
    "beams": ("", TEXTS, BEAMS, {"source": WORDS}),
    "samples": ("", TEXTS, SAMPLES, {"source": WORDS}),
    "ids": ("", PADDED, {"stop": ["D"]}, {"source": IDS}),
    "split": ("", TEXTS, {"split": "sentences"}, {"source": WORDS}),
    "hidden": (".encode", TEXTS, {}, {"source": WORDS}),
    "pooled": (".encode", PADDED, MEAN, {"source": IDS}),
    "decoded": (".attention", TEXTS, {"attention": ALL_KINDS}, {"source": WORDS}),
    "given": (".attention", PAIRS, {"attention": REDUCED}, {"source": WORDS, "target": TARGETS}),
    "score": (".score", PAIRS, {}, {"source": WORDS, "target": TARGETS}),
}
# What is wrong with a request for the words -> its parameters, and its status
REFUSED = {
    "a wrong type": ({"beam_size": "four"}, 400),
    "out of range": ({"temperature": -1.0}, 400),
    "beyond the model": ({"max_new_tokens": 65}, 400),
    "a contradiction": ({"temperature": 1.0, "beam_size": 2}, 400),
    "a language that it lacks": ({"source_language": "fr"}, 400),
    "too many rows": ({"temperature": 1.0, "num_hypotheses": 64, "max_new_tokens": 1}, 413),
}


@pytest.fixture(scope="module")
def address():
    with serving(
        "--protocols", "open-inference", "--max-sources", "9", "--max-rows", "100"
    ) as address:
        yield address


def run_client(address, calls):
    """Return the outcome of each call of Triton's client: {name: {"method": ..., arguments}}."""
    asked = json.dumps({"url": address.removeprefix("http://"), "calls": calls})
    ran = subprocess.run(
        [sys.executable, CLIENT], input=asked, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.fixture(scope="module")
def outcomes(address):
    """What Triton's client gets: every outcome by its name, those of CALLS by name and form."""
    calls = {}
    for name, (suffix, inputs, parameters, _) in CALLS.items():
        call = {"method": "infer", "model": f"g2p-en{suffix}", "inputs": inputs}
        call["parameters"] = parameters
        calls[f"{name} binary"] = call
        calls[f"{name} json"] = {**call, "binary": False, "outputs": outputs_of(name)}
    words = {"method": "infer", "model": "g2p-en", "inputs": TEXTS}
    for name, (parameters, _) in REFUSED.items():
        calls[name] = {**words, "parameters": parameters}
    for coding in ("gzip", "deflate"):
        calls[coding] = {
            **words,
            "request_compression_algorithm": coding,
            "response_compression_algorithm": coding,
        }
    calls["text"] = {**words, "outputs": ["text"], "request_id": "mine", "headers": {"a": "b"}}
    calls["version"] = {**words, "model_version": version_of(address)}
    calls |= {
        "live": {"method": "is_server_live"},
        "ready": {"method": "is_server_ready"},
        "model": {"method": "is_model_ready", "model_name": "g2p-en.score"},
        "no model": {"method": "is_model_ready", "model_name": "g2p-en.scores"},
        "server metadata": {"method": "get_server_metadata"},
        "metadata": {"method": "get_model_metadata", "model_name": "g2p-en.attention"},
        "unknown model": {"method": "get_model_metadata", "model_name": "g2p-e"},
        "unknown version": {**words, "model_version": "1"},
        "unknown input": {**words, "inputs": {"sources": ["BYTES", WORDS]}},
        "unknown parameter": {**words, "parameters": {"num_beams": 4}},
        "unknown output": {**words, "outputs": ["token"]},
    }
    return run_client(address, calls)


def version_of(address):
    return httpx2.get(f"{address}/v1/models/g2p-en").json()["version"]


def outputs_of(name):
    """The outputs that JSON is asked for: some of those that are all sent in binary."""
    return {
        "": ["text", "score"],
        ".encode": ["length", "tokens"],
        ".attention": ["cross", "cross_shape", "target"],
        ".score": ["log_probs", "sum", "perplexity"],
    }[CALLS[name][0]]


def read(outcome):
    """Return the arrays of an outcome, with texts as objects."""
    arrays = {}
    for name, (datatype, shape, content) in outcome.items():
        if datatype == "BYTES":
            arrays[name] = np.array(content, object).reshape(shape)
        else:
            bits = np.frombuffer(bytes.fromhex(content), DTYPES[datatype])
            arrays[name] = bits.reshape(shape)
    return arrays


@pytest.fixture(scope="module")
def ours(address):
    """What our own endpoint answers: name in CALLS -> results."""

    def ask(name):
        suffix, _, parameters, fields = CALLS[name]
        path = f"/v1/{suffix.removeprefix('.') or 'decode'}"
        answer = httpx2.post(f"{address}{path}", json={**fields, **parameters})
        assert answer.status_code == 200, answer.text
        return answer.json()["results"]

    return ask


def assert_rows(padded, lists, dtype=np.float32):
    """Each of `lists` begins a row of `padded`, bit for bit, and the rest is padding."""
    for row, values in zip(padded, lists, strict=True):
        expected = np.array(values, row.dtype if row.dtype == object else dtype)
        places = tuple(map(slice, expected.shape))
        assert row[places].tolist() == expected.tolist()
        rest = np.ones(row.shape, bool)
        rest[places] = False
        assert not any(row[rest])


@pytest.mark.parametrize("name", ["greedy", "beams", "samples", "ids"])
def test_targets_are_those_of_our_own_endpoint(outcomes, ours, name):
    found, results = read(outcomes[f"{name} binary"]), ours(name)
    hypotheses = [each for result in results for each in result["hypotheses"]]
    assert len(found["text"].ravel()) == len(hypotheses) > 0
    for field in ("text", "finish_reason", "score"):
        expected = np.array([each[field] for each in hypotheses], found[field].dtype)
        assert found[field].ravel().tolist() == expected.tolist()
    for field in ("tokens", "token_ids", "log_probs"):
        dtype = np.float32 if field == "log_probs" else np.int64
        rows = found[field].reshape(-1, found[field].shape[-1])
        assert_rows(rows, [each[field] for each in hypotheses], dtype)
    assert found["length"].ravel().tolist() == [len(each["token_ids"]) for each in hypotheses]
    assert found["source_length"].tolist() == [each["source_tokens"] for each in results]


def test_texts_that_are_split_have_texts_and_scores(outcomes, ours):
    found, results = read(outcomes["split binary"]), ours("split")
    assert list(found) == ["text", "score", "source_length"]
    assert found["text"].ravel().tolist() == [each["hypotheses"][0]["text"] for each in results]


def test_vectors_are_those_of_our_own_endpoint(outcomes, ours):
    found, results = read(outcomes["hidden binary"]), ours("hidden")
    assert list(found) == ["hidden", "length", "tokens"]
    assert_rows(found["hidden"], [each["hidden"] for each in results])
    assert_rows(found["tokens"], [each["tokens"] for each in results])
    assert found["length"].tolist() == [len(each["tokens"]) for each in results]
    pooled = read(outcomes["pooled binary"])
    assert list(pooled) == ["embedding", "length", "tokens"]
    assert pooled["embedding"].shape == (len(IDS), 7)
    assert_rows(pooled["embedding"], [each["embedding"] for each in ours("pooled")])


@pytest.mark.parametrize("kind", ["cross", "decoder", "encoder"])
def test_weights_of_each_kind_are_those_of_our_own_endpoint(outcomes, ours, kind):
    found, results = read(outcomes["decoded binary"]), ours("decoded")
    blocks = [each for result in results for each in result["attention"] if each["kind"] == kind]
    assert_rows(found[kind], [block["data"] for block in blocks])
    assert found[f"{kind}_shape"].tolist() == [block["shape"][-2:] for block in blocks]
    for axis in ("rows", "columns"):
        tokens = [[token["text"] for token in block[axis]] for block in blocks]
        assert_rows(found[f"{kind}_{axis}"], tokens)
    assert found["target"].tolist() == [result["target"] for result in results]


def test_reduced_weights_keep_their_axes_and_alignments_are_in_the_pharaoh_format(outcomes, ours):
    found, results = read(outcomes["given binary"]), ours("given")
    blocks = [result["attention"][0] for result in results]
    assert found["cross"].shape[1:3] == (1, 1)
    assert_rows(found["cross"][:, 0, 0], [block["data"][0] for block in blocks])
    assert found["alignment"].shape == (len(WORDS), 1, 1)
    assert found["alignment"].ravel().tolist() == [b["alignment"][0]["pharaoh"] for b in blocks]


def test_scores_are_those_of_our_own_endpoint(outcomes, ours):
    found, results = read(outcomes["score binary"]), ours("score")
    for field in ("log_probs", "tokens"):
        assert_rows(found[field], [each[field] for each in results])
    for field in ("sum", "mean", "perplexity"):
        expected = np.array([each[field] for each in results], found[field].dtype)
        assert found[field].tolist() == expected.tolist()


@pytest.mark.parametrize("name", CALLS)
def test_json_has_the_bits_of_binary_tensors(outcomes, name):
    found, binary = read(outcomes[f"{name} json"]), read(outcomes[f"{name} binary"])
    assert list(found) == outputs_of(name)
    for output, array in found.items():
        assert array.tolist() == binary[output].tolist()
        assert array.shape == binary[output].shape


@pytest.mark.parametrize("name", ["gzip", "deflate", "version"])
def test_compressed_requests_and_the_version_change_nothing(outcomes, name):
    assert outcomes[name] == outcomes["greedy binary"]


def test_a_request_gets_the_outputs_that_it_names_and_its_id(outcomes):
    assert outcomes["text"] == {"text": outcomes["greedy binary"]["text"], "id": "mine"}


def test_the_client_sees_what_is_ready(outcomes):
    states = {name: outcomes[name] for name in ("live", "ready", "model", "no model")}
    assert states == {"live": True, "ready": True, "model": True, "no model": False}


def test_metadata_describes_every_output_that_comes(outcomes):
    assert outcomes["server metadata"]["extensions"] == ["binary_tensor_data"]
    metadata = outcomes["metadata"]
    inputs = [each["name"] for each in metadata["inputs"]]
    assert inputs[:3] == ["source", "source_ids", "source_length"]
    forms = {each["name"]: each for each in metadata["outputs"]}
    for name, (datatype, shape, _) in outcomes["decoded binary"].items():
        assert forms[name]["datatype"] == datatype
        assert forms[name]["shape"] == [-1] * len(shape)


def test_metadata_has_the_schema_of_the_parameters(outcomes):
    check = Draft202012Validator(outcomes["metadata"]["parameters"]).is_valid
    assert all(check(CALLS[name][2]) for name in ("decoded", "given"))
    assert not any(map(check, [{"num_beams": 4}, {"beam_size": "4"}, {"attention": {"head": 1}}]))


def test_the_documented_program_prints_what_is_shown(address):
    ((code, shown),) = [
        each for each in programs(DOCS.read_text(), "python") if "tritonclient" in each[0]
    ]
    code = code.replace(HOST, address.removeprefix("http://"))
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == shown


def test_the_documentation_names_every_model_and_output():
    rows = re.findall(r"^\| `g2p-en([.\w]*)` \| `/v1/\w+` \| (.*) \|$", DOCS.read_text(), re.M)
    assert [suffix for suffix, _ in rows] == list(TASKS)
    for suffix, text in rows:
        named = set(re.findall(r"`(\w+)`", text)) - {"pooling", "attention"}
        kinds = ("cross", "decoder", "encoder")  # the outputs of cross stand for those of each
        every = {re.sub(r"^(decoder|encoder)_", "cross_", name) for name in TASKS[suffix].outputs}
        assert named == every | (set(kinds) if "cross" in every else set())


@pytest.mark.parametrize("name", REFUSED)
def test_errors_have_the_words_of_our_own_endpoint(outcomes, address, name):
    parameters, status = REFUSED[name]
    problem = httpx2.post(f"{address}/v1/decode", json={"source": WORDS, **parameters}).json()
    assert outcomes[name] == {"status": str(status), "message": problem["detail"]}


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("unknown model", "404", "did you mean g2p-en? give one of g2p-en, g2p-en.encode, "),
        ("unknown version", "404", "no version '1': ask for "),
        ("unknown input", "400", "/sources is no input here: did you mean source? "),
        ("unknown parameter", "400", "/num_beams is no parameter here: did you mean beam_size? "),
        ("unknown output", "400", "/token is no output here: did you mean tokens? the outputs are"),
    ],
)
def test_an_unknown_name_gets_the_nearest_and_all_there_are(outcomes, name, status, words):
    assert outcomes[name]["status"] == status
    assert words in outcomes[name]["message"]


@pytest.fixture(scope="module")
def client():
    chosen = {"api_keys": "k" * 16, "protocols": ["open-inference"]}
    with opened(DEFAULT_BUNDLE, TINY, **chosen) as client:
        client.headers["Authorization"] = f"Bearer {'k' * 16}"
        yield client


INFER = "/v2/models/g2p-en/infer"
REQUEST = {"inputs": [{"name": "source", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}


def test_metadata_needs_a_key_and_probes_need_none(client):
    def status_of(path):
        return client.get(path, headers={"Authorization": ""}).status_code

    probes = ["/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/g2p-en/ready"]
    assert [status_of(path) for path in probes] == [200, 200, 200, 200]
    assert [status_of(f"/v2/models/{name}") for name in ("tiny", "ready")] == [401, 401]
    assert client.post(INFER, json=REQUEST, headers={"Authorization": ""}).status_code == 401


@pytest.fixture
def no_models(client):
    models = client.app.state.models
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
        (gzip.compress(b" " * (1 << 21)), "gzip", 413, "1048576 bytes when decompressed"),
        (gzip.compress(b"{}")[:-9], "gzip", 400, "ends too early"),
        (b"{}", "deflate", 400, "cannot be decompressed"),
        (zlib.compress(b"{}"), "deflate", 400, "/inputs is required"),
        (b"{}", "br", 415, "content-encoding br is not supported"),
    ],
)
def test_what_cannot_be_decompressed_is_refused(client, content, coding, status, words):
    answer = client.post(INFER, content=content, headers={"Content-Encoding": coding})
    assert answer.status_code == status
    assert words in answer.json()["error"]


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_whether_outputs_are_binary_is_true_or_false(client, value):
    answer = client.post(INFER, json={**REQUEST, "parameters": {"binary_data_output": value}})
    assert answer.status_code == 400
    assert answer.json() == {"error": "/binary_data_output must be true or false"}


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"source_ids": [[4, 5]], "source_length": [3]}, "/source_length/0 is 3 but"),
        ({"source_ids": [[4, 5]], "source_length": [1, 1]}, "holds 2 lengths for 1 sequences"),
        ({"source_length": [1]}, "/source_length has no effect without source_ids"),
        ({"source": ["a"], "source_ids": [[4]]}, "/source_ids has no effect beside source"),
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


def test_limits_count_what_padding_adds(client, limit_of_answers):
    """One long source and many short ones: alone they fit, padded to the long one they do not."""
    words = ["a" * 40, *["a"] * 30]
    tensor = {"name": "source", "datatype": "BYTES", "shape": [len(words)], "data": words}
    d_model = 192
    limit_of_answers(4 * d_model * (40 + 30))
    assert client.post("/v1/encode", json={"model": "g2p-en", "source": words}).status_code == 200
    answer = client.post("/v2/models/g2p-en.encode/infer", json={"inputs": [tensor]})
    assert answer.status_code == 413
    assert f"could take {4 * d_model * 40 * 31} bytes" in answer.json()["error"]


@pytest.fixture
def limit_of_answers(client):
    settings = client.app.state.settings

    def change(nbytes):
        client.app.state.settings = settings.model_copy(update={"max_answer_bytes": nbytes})

    yield change
    client.app.state.settings = settings


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


HEADER_LENGTH = "Inference-Header-Content-Length"
