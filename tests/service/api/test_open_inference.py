"""The Open Inference Protocol, compared with our own endpoints: what the stock Triton client reads
has the bits of their answers, and errors have their words."""

import json
from pathlib import Path

import httpx2
import numpy as np
import pytest
from jsonschema import Draft202012Validator

from service.api.protocols.open_inference.tensors import DTYPES
from tests.conftest import serving
from tests.documentation import HOST, programs
from tests.service.processes import run_python

DOCS = Path("docs/protocols.md")
CLIENT = Path("tests/clients/open_inference.py")
WORDS = ["heed", "attention", "a"]
TARGETS = ["HH IY1 D", "AH0 T EH1 N SH AH0 N", "AH0"]
IDS = [[4, 5, 6], [7]]
TEXTS = {"source": ["BYTES", WORDS]}
MARKED = {"source": ["BYTES", ["<b>heed</b>", "photo<i>graph</i>", "a"]]}
PAIRS = {**TEXTS, "target": ["BYTES", TARGETS]}
PADDED = {"source_ids": ["INT64", [[4, 5, 6], [7, 0, 0]]], "source_length": ["INT64", [3, 1]]}
DRAFTS = [TARGETS[0], "", TARGETS[2]]
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
    "drafted": ("", TEXTS, {"draft": DRAFTS}, {"source": WORDS}),
    "ids": ("", PADDED, {"stop": ["D"]}, {"source": IDS}),
    "split": ("", TEXTS, {"split": "sentences"}, {"source": WORDS}),
    "markup": ("", MARKED, {"markup": "xml"}, {"source": MARKED["source"][1]}),
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
    ran = run_python(CLIENT, input=asked)
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


@pytest.mark.parametrize("name", ["greedy", "beams", "samples", "drafted", "ids"])
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


def test_drafts_are_counted_as_by_our_own_endpoint(outcomes, ours):
    found, results = read(outcomes["drafted binary"]), ours("drafted")
    for field in ("drafted", "accepted"):
        counts = [[each.get(field, 0) for each in result["hypotheses"]] for result in results]
        assert found[field].tolist() == counts
        assert sum(map(sum, counts)) > 0
        assert field not in outcomes["greedy binary"]


@pytest.mark.parametrize("name", ["split", "markup"])
def test_texts_of_several_targets_have_texts_and_scores(outcomes, ours, name):
    found, results = read(outcomes[f"{name} binary"]), ours(name)
    assert list(found) == ["text", "score", "finish_reason", "source_length"]
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
    assert run_python("-c", code, check=True).stdout == shown


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
        (
            "unknown input",
            "400",
            "/sources is not one of the inputs of this model: did you mean source? ",
        ),
        ("unknown parameter", "400", "/num_beams is not one of the parameters of this model: did"),
        ("unknown output", "400", "outputs of this model: did you mean tokens? give one of "),
    ],
)
def test_an_unknown_name_gets_the_nearest_and_all_there_are(outcomes, name, status, words):
    assert outcomes[name]["status"] == status
    assert words in outcomes[name]["message"]
