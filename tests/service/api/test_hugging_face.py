"""Texts by the stock client of Hugging Face, compared with what our own endpoints return."""

import os
from pathlib import Path
from types import SimpleNamespace

import httpx2
import numpy as np
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import (
    BadRequestError,
    GenerationError,
    HfHubHTTPError,
    OverloadedError,
    ValidationError,
)
from huggingface_hub.inference._common import _stream_text_generation_response

from service.api.protocols.hugging_face.parameters import read_parameters
from service.api.protocols.hugging_face.routes import ERRORS
from service.api.protocols.hugging_face.tokens import TokenWriter
from service.bundle.manifest import load_bundle
from service.errors import Overloaded, PassFailed
from service.settings.settings import DEFAULT_BUNDLE
from service.text.opening import open_tokenizers
from tests.conftest import KEY, opened
from tests.documentation import programs
from tests.service.api.conftest import copy_of
from tests.service.http.asgi import called_for, request_for
from tests.service.processes import run_python

PAIR = {"src_lang": "eng_Latn", "tgt_lang": "heb_Hebr"}
OURS = {"source_language": "eng_Latn", "target_language": "heb_Hebr"}
HEADERS = {"Authorization": f"Bearer {KEY}"}
PAGE = (Path(__file__).parents[3] / "docs" / "protocols.md").read_text(encoding="utf-8")
TRANSLATE, PRONOUNCE = "/models/translator", "/models/g2p-en"
FEATURES = "/pipeline/feature-extraction/g2p-en"
FEATURES_OF_TRANSLATOR = "/pipeline/feature-extraction/translator"


@pytest.fixture(scope="module")
def stock(protocol_server):
    """The stock client of a path."""
    return lambda path: InferenceClient(base_url=protocol_server + path, token=KEY)


@pytest.fixture(scope="module")
def http(protocol_server):
    with httpx2.Client(base_url=protocol_server, headers=HEADERS) as client:
        yield client


@pytest.fixture(scope="module")
def decode(http):
    """The hypotheses of /v1/decode, for the only source."""

    def decode(model, source, **options):
        answer = http.post("/v1/decode", json={"model": model, "source": source, **options})
        (result,) = answer.json()["results"]
        return result["hypotheses"]

    return decode


def test_the_client_translates(stock, decode):
    translated = stock(TRANSLATE).translation("hello", **PAIR)
    assert translated.translation_text == decode("translator", "hello", **OURS)[0]["text"]
    six = stock("").translation(
        "hello", model=stock(TRANSLATE).model, generate_parameters={"max_new_tokens": 6}, **PAIR
    )
    (expected,) = decode("translator", "hello", max_new_tokens=5, **OURS)
    assert six.translation_text == expected["text"] != translated.translation_text


def test_the_client_summarizes_where_the_path_says_so(stock, decode):
    client = stock("/pipeline/summarization/g2p-en")
    summary = client.summarization("attention", generate_parameters={"num_beams": 4})
    (expected,) = decode("g2p-en", "attention", beam_size=4)
    assert summary.summary_text == expected["text"]


@pytest.mark.parametrize("options", [{}, {"max_new_tokens": 3}, {"stop": ["AH0"]}])
def test_the_client_generates_text_with_its_tokens(stock, decode, options):
    client = stock("/models/anyone/g2p-en")
    (expected,) = decode("g2p-en", "banana", **options)
    assert client.text_generation("banana", **options) == expected["text"]
    details = client.text_generation("banana", details=True, **options).details
    reasons = {"eos": "eos_token", "length": "length", "stop": "stop_sequence"}
    assert details.finish_reason == reasons[expected["finish_reason"]]
    assert details.generated_tokens == len(expected["token_ids"])
    assert [token["id"] for token in details.tokens] == expected["token_ids"]
    assert [token["logprob"] for token in details.tokens] == expected["log_probs"]
    assert "".join(token["text"] for token in details.tokens) == expected["text"]
    assert details.tokens[-1]["special"] == (expected["finish_reason"] == "eos")


def test_the_client_samples_as_a_seed_says(stock, decode):
    drawn = stock(PRONOUNCE).text_generation("banana", do_sample=True, seed=3, details=True)
    (expected,) = decode("g2p-en", "banana", temperature=1.0, seed=3)
    assert (drawn.generated_text, drawn.details.seed) == (expected["text"], 3)


@pytest.mark.parametrize("options", [{}, {"max_new_tokens": 3}, {"temperature": 2.0, "seed": 1}])
def test_the_client_streams_tokens_and_the_whole_text_with_the_last(stock, options):
    client = stock(PRONOUNCE)
    whole = client.text_generation("banana", details=True, **options)
    *events, last = client.text_generation("banana", stream=True, details=True, **options)
    assert [vars(event.token) for event in [*events, last]] == whole.details.tokens
    assert [event.generated_text for event in events] == [None] * len(events)
    assert last.generated_text == whole.generated_text
    assert last.details.finish_reason == whole.details.finish_reason
    assert last.details.generated_tokens == whole.details.generated_tokens == last.index
    assert last.details.seed == options.get("seed")
    assert last.details.input_length == len("banana")
    texts = client.text_generation("banana", stream=True, **options)
    assert "".join(texts) == whole.generated_text


def test_a_beam_search_streams_the_text_of_its_best_beam(http, decode):
    """The stock client has no parameter for beams, but a model may have a default."""
    body = {"inputs": "photograph", "stream": True, "parameters": {"num_beams": 4}}
    with http.stream("POST", PRONOUNCE, json=body) as answer:
        *events, last = _stream_text_generation_response(answer.iter_lines(), details=True)
    (expected,) = decode("g2p-en", "photograph", beam_size=4)
    assert [event.token["id"] for event in [*events, last]] == expected["token_ids"]
    assert "".join(event.token["text"] for event in events) == expected["text"]
    assert last.generated_text == expected["text"]


def test_the_client_gets_vectors_of_length_1(stock, http):
    body = {"model": "g2p-en", "source": ["color", "colour"]}
    results = http.post("/v1/encode", json=body).json()["results"]
    means = np.array([np.mean(each["hidden"], axis=0) for each in results])
    client = stock("/pipeline/feature-extraction/g2p-en")
    vectors = client.feature_extraction(["color", "colour"], normalize=False)
    np.testing.assert_allclose(vectors, means, atol=1e-6)
    units = means[:, :9] / np.linalg.norm(means[:, :9], axis=1, keepdims=True)
    client = stock("/models/g2p-en/pipeline/feature-extraction")
    np.testing.assert_allclose(client.feature_extraction("color", dimensions=9), units[:1], 1e-4)


@pytest.mark.parametrize(
    ("parameters", "options"),
    [
        ({"num_beams": 3, "num_return_sequences": 2}, {"beam_size": 3, "num_hypotheses": 2}),
        ({"do_sample": True, "seed": 5}, {"temperature": 1.0, "seed": 5}),
        ({"top_k": 3, "seed": 5}, {"temperature": 1.0, "top_k": 3, "seed": 5}),
        ({"do_sample": True, "top_k": 0, "seed": 5}, {"temperature": 1.0, "seed": 5}),
        ({"do_sample": False, "temperature": 3.0, "top_p": 0.1, "seed": 5}, {}),
        ({"max_length": 4}, {"max_new_tokens": 3}),  # it counts the start token
        ({"max_length": 10_000}, {"max_new_tokens": 64}),  # the model's positions
        ({"max_new_tokens": 10_000}, {"max_new_tokens": 64}),
        ({"max_new_tokens": 3}, {"max_new_tokens": 3}),
        ({"min_new_tokens": 9}, {"min_new_tokens": 9}),
        ({"max_length": 2, "max_new_tokens": 3}, {"max_new_tokens": 3}),
        ({"min_length": 9}, {"min_new_tokens": 8}),
        ({"min_length": 1}, {}),
        ({"repetition_penalty": 2}, {"repetition_penalty": 2}),
        ({"no_repeat_ngram_size": 1}, {"no_repeat_ngram_size": 1}),
        ({"stop_strings": "AE1"}, {"stop": "AE1"}),
        ({"suppress_tokens": [20]}, {"suppress_tokens": [20]}),
        (  # the end alone, which is id 2, is let alone
            {"suppress_tokens": [20], "bad_words_ids": [[4], [2], [17, 5]]},
            {"suppress_tokens": [20, 4, [17, 5]]},
        ),
        ({"generate_parameters": {"num_beams": 2, "length_penalty": 2}}, {"beam_size": 2}),
        ({"watermark": False, "return_full_text": False, "best_of": 1, "typical_p": None}, {}),
        ({"truncation": "do_not_truncate", "clean_up_tokenization_spaces": True}, {}),
    ],
)
def test_parameters_are_our_options(http, decode, parameters, options):
    if "generate_parameters" in parameters:
        options = {**options, "length_penalty": 2}
    body = {"inputs": "banana", "parameters": parameters, "options": {"use_cache": False}}
    answer = http.post(PRONOUNCE, json=body)
    expected = [{"generated_text": each["text"]} for each in decode("g2p-en", "banana", **options)]
    assert (answer.status_code, answer.json()) == (200, expected)


@pytest.mark.parametrize(
    ("words", "pointer"),
    [("x", ""), ([[0, 1], [26, 999]], "/1"), ([[0], 5], "/1"), ([[]], "/0"), ([[True]], "/0")],
)
def test_the_first_bad_word_that_is_wrong_is_named(http, words, pointer):
    parameters = {"num_beams": 2, "bad_words_ids": words}
    answer = http.post(PRONOUNCE, json={"inputs": "banana", "parameters": parameters})
    assert answer.status_code == 400
    assert f"parameters/bad_words_ids{pointer} must be a list of" in answer.text


@pytest.mark.parametrize("how", [True, "longest_first", "only_first"])
@pytest.mark.parametrize(
    ("model", "text", "longest", "parameters"),
    [
        ("g2p-en", "daughters", 64, {}),
        ("translator", "hello one two ", 6 * 14, PAIR),  # 18 words, its language, <eos>
    ],
)
def test_a_text_that_is_too_long_is_cut(http, how, model, text, longest, parameters):
    cuts = {**parameters, "truncation": how}
    long = text * 10_000

    def generate(inputs, parameters):
        answer = http.post(f"/models/{model}", json={"inputs": inputs, "parameters": parameters})
        return answer.status_code, answer.json()

    status, expected = generate(long[:longest], parameters)
    assert status == 200
    assert generate(long[: longest + 9], parameters)[0] == 400
    assert generate(long, cuts) == (200, expected)
    assert generate([text, long], cuts)[1][1:] == expected


@pytest.mark.parametrize(
    "fields",
    [
        {
            "options": {"wait_for_model": True, "use_gpu": False}
        },  # InferenceApi, huggingface_hub 0.14
        {"parameters": {}},  # huggingface_hub 0.28
        {"parameters": {}, "stream": False},
        {"model": "owner/g2p-en"},  # @huggingface/inference 2.8
        {"options": {"retry_on_error": True, "use_cache": True}},  # and 1.8
        {"parameters": None, "options": None, "stream": None, "model": None},
    ],
)
@pytest.mark.parametrize("path", [PRONOUNCE, "/pipeline/translation/g2p-en"])
def test_fields_that_clients_send_beside_the_text_change_no_answer(http, path, fields):
    expected = http.post(path, json={"inputs": "heed"})
    answer = http.post(path, json={"inputs": "heed", **fields})
    assert (answer.status_code, answer.json()) == (200, expected.json())


@pytest.mark.parametrize(
    "sent",
    [
        {
            "normalize": False,
            "dimensions": 9,
            "encoding_format": "float",
        },  # @huggingface/inference 4
        {"parameters": {"normalize": False, "dimensions": 9}},  # huggingface_hub 0.28
        {"parameters": {"dimensions": 9}, "normalize": False, "model": "g2p-en", "options": {}},
    ],
)
def test_features_are_asked_for_beside_the_text_or_in_parameters(stock, http, sent):
    client = stock(FEATURES)
    expected = client.feature_extraction("heed", normalize=False, dimensions=9)
    answer = http.post(FEATURES, json={"inputs": "heed", **sent})
    assert answer.status_code == 200
    np.testing.assert_array_equal(np.float32(answer.json()), expected)


@pytest.mark.parametrize("place", [lambda given: given, lambda given: {"parameters": given}])
def test_features_are_those_of_the_language_that_is_given(http, place):
    body = {"model": "translator", "source": "hello", "pooling": "mean"}

    def embed(code):
        given = place({"src_lang": code, "normalize": False})
        return http.post(FEATURES_OF_TRANSLATOR, json={"inputs": "hello", **given}).json()

    languages = ("eng_Latn", "arb_Arab")
    for code in languages:
        expected = http.post("/v1/encode", json={**body, "source_language": code}).json()
        np.testing.assert_array_equal(embed(code), [expected["results"][0]["embedding"]])
    assert embed(languages[0]) != embed(languages[1])


def test_features_of_an_encoder_that_reads_the_target_language_need_it(needs_none):
    path, body = "/pipeline/feature-extraction/needs-none", {"inputs": "red"}
    with opened(needs_none, protocols="hugging-face") as client:
        assert "tgt_lang is required" in client.post(path, json=body).json()["error"]
        vectors = [
            client.post(path, json={**body, "tgt_lang": code}).json() for code in ("en", "fr")
        ]
    assert len(vectors[0][0]) == len(vectors[1][0])
    assert vectors[0] != vectors[1]


def test_a_text_is_cut_to_be_embedded_if_the_client_says_so(stock, http):
    long = "daughters" * 100
    assert http.post(FEATURES, json={"inputs": long}).status_code == 400
    cut = stock(FEATURES).feature_extraction(long, truncate=True, truncation_direction="right")
    np.testing.assert_array_equal(cut, stock(FEATURES).feature_extraction(long[:64]))


def test_each_of_several_texts_has_a_text_or_a_list_of_texts(http):
    one, other = (http.post(PRONOUNCE, json={"inputs": each}).json() for each in ("read", "deed"))
    assert http.post(PRONOUNCE, json={"inputs": ["read", "deed"]}).json() == one + other
    beams = {"num_beams": 2, "num_return_sequences": 2}
    both = http.post(PRONOUNCE, json={"inputs": ["read"], "parameters": beams}).json()
    assert both == [http.post(PRONOUNCE, json={"inputs": "read", "parameters": beams}).json()]
    assert len(both[0]) == 2


@pytest.mark.parametrize(
    ("path", "body", "part"),
    [
        (PRONOUNCE, {}, "inputs is required"),
        ("/", {"input": "heed"}, "input is not a field: did you mean inputs?"),
        (
            PRONOUNCE,
            {"inputs": 3, "q": "a"},
            "list of texts; q is not a field: did you mean inputs?",
        ),
        (PRONOUNCE, {"inputs": 3}, "inputs must be a text or a list of texts"),
        (PRONOUNCE, {"inputs": ["heed", "7"]}, "inputs/1 has '7' at offset 0"),
        (PRONOUNCE, {"parameters": {"num_beams": 65}}, "parameters/num_beams must be at most 64"),
        (PRONOUNCE, {"parameters": {"do_sample": 1}}, "parameters/do_sample must be true or"),
        (PRONOUNCE, {"parameters": {"max_length": 1}}, "parameters/max_length is 1, which leaves"),
        (PRONOUNCE, {"parameters": {"max_new_tokens": 0}}, "give at least 1"),
        (PRONOUNCE, {"parameters": {"truncation": "left"}}, "parameters/truncation must be true,"),
        (PRONOUNCE, {"parameters": {"truncation": [1]}}, "parameters/truncation must be true,"),
        (PRONOUNCE, {"parameters": {"truncation": 1}}, "parameters/truncation must be true,"),
        (PRONOUNCE, {"parameters": {"top_k": False}}, "parameters/top_k must be"),
        ("/pipeline/feature-extraction/g2p-en", {"inputs": "7"}, "inputs has '7' at offset 0"),
        (
            "/pipeline/feature-extraction/g2p-en",
            {"inputs": ["a", "7"]},
            "inputs/1 has '7' at offset 0",
        ),
        (PRONOUNCE, {"inputs": "a" * 99, "parameters": {}}, "inputs has 99 tokens; the limit is"),
        (
            PRONOUNCE,
            {"inputs": ["a"] * 256, "parameters": {"num_beams": 17, "max_new_tokens": 1}},
            "send less, or lower num_beams or num_return_sequences",
        ),
        (PRONOUNCE, {"inputs": "a" * 99}, "shorten it, or set parameters/truncation to true"),
        (
            PRONOUNCE,
            {"parameters": {"min_length": 500}},
            "parameters/min_length is 500, but targets have at most 65 tokens: lower min_length",
        ),
        (
            PRONOUNCE,
            {"parameters": {"min_new_tokens": 65}},
            "is 65, but targets have at most 64 tokens: lower min_new_tokens",
        ),
        (
            PRONOUNCE,
            {"parameters": {"min_length": 9, "max_length": 8}},
            "is 9, but targets have at most 8 tokens: lower min_length or raise max_length",
        ),
        (
            PRONOUNCE,
            {"parameters": {"min_length": 9, "max_new_tokens": 6}},
            "is 9, but targets have at most 7 tokens: lower min_length or raise max_new_tokens",
        ),
        (PRONOUNCE, {"parameters": {"min_length": "a"}}, "parameters/min_length must be a whole"),
        (PRONOUNCE, {"parameters": {"generate_parameters": 1}}, "generate_parameters must be a"),
        (
            PRONOUNCE,
            {"parameters": {"num_return_sequences": 2}},
            "parameters/num_return_sequences is 2 but num_beams is 1",
        ),
        (
            PRONOUNCE,
            {"parameters": {"num_beams": 2, "do_sample": True, "top_k": 5}},
            "parameters/do_sample starts sampling, which num_beams > 1 (beam search) cannot be",
        ),
        (
            PRONOUNCE,
            {"parameters": {"num_beams": 2, "top_k": 5}},
            "parameters/top_k starts sampling, which num_beams > 1 (beam search) cannot be",
        ),
        (
            PRONOUNCE,
            {"parameters": {"num_beams": 2, "do_sample": True, "temperature": 3}},
            "parameters/temperature is 3: temperature (sampling) and num_beams > 1",
        ),
        (PRONOUNCE, {"num_beams": 4}, "body has num_beams beside inputs: put num_beams into param"),
        (PRONOUNCE, {"num_beam": 4}, "has num_beam beside inputs: put num_beams into parameters"),
        (PRONOUNCE, {"beam_size": 4}, "has beam_size beside inputs: put num_beams into parameters"),
        (PRONOUNCE, {"seed": 1, "max_tokens": 4}, "seed, max_tokens beside inputs: put seed, max_"),
        (PRONOUNCE, {"options": {"num_beams": 4}}, "has num_beams in options: put num_beams into"),
        (PRONOUNCE, {"options": {"beam_size": 4}}, "has beam_size in options: put num_beams into"),
        (PRONOUNCE, {"options": {"generate_parameters": {}}}, "has generate_parameters in options"),
        (
            PRONOUNCE,
            {"parameters": {"num_beams": 1, "generate_parameters": {"num_beams": 2}}},
            "parameters/generate_parameters has num_beams again: send it once",
        ),
        (PRONOUNCE, {"parameters": {"stream": True}}, "['stream']: put stream beside parameters;"),
        (PRONOUNCE, {"parameter": {"num_beams": 4}}, "parameter is not a field: did you mean para"),
        (
            PRONOUNCE,
            {"params": {"num_beams": 4}},
            "params is not a field: did you mean parameters?",
        ),
        (PRONOUNCE, {"steam": True}, "steam is not a field: did you mean stream?"),
        (PRONOUNCE, {"qqq": 1}, "qqq is not a field; the fields are inputs, parameters, options"),
        (PRONOUNCE, {"source": "heed"}, "source is not a field: did you mean inputs?"),
        (PRONOUNCE, {"input": "heed"}, "input is not a field: did you mean inputs?"),
        (FEATURES, {"normalise": False}, "normalise is not a field: did you mean normalize?"),
        (FEATURES, {"parameters": {"prompt_name": "query"}}, "prompt_name is not a field; the fi"),
        (FEATURES, {"parameters": {"inputs": "a"}}, "has inputs in parameters: put it beside them"),
        (FEATURES, {"parameters": {"parameters": {}}}, "has parameters in parameters: put it"),
        (
            FEATURES,
            {"normalize": True, "parameters": {"normalize": False}},
            "has normalize in parameters and beside them: send it once",
        ),
        (FEATURES, {"truncate": True, "truncation_direction": "left"}, "truncation_direction must"),
        (PRONOUNCE, {"parameters": {"num_beam": 2}}, "['num_beam']: did you mean num_beams?"),
        (PRONOUNCE, {"parameters": {"num_beam_groups": 2}}, "['num_beam_groups']: the parameters"),
        (
            PRONOUNCE,
            {"parameters": {"force_words_ids": [[1]]}},
            "['force_words_ids']: POST /v1/decode takes required; the parameters are",
        ),
        (
            PRONOUNCE,
            {"parameters": {"top_n_tokens": 2}},
            "['top_n_tokens']: POST /v1/decode takes top_log_probs; the parameters are",
        ),
        (PRONOUNCE, {"parameters": {"forced_bos_token_id": 1}}, "did you mean tgt_lang? the para"),
        (PRONOUNCE, {"parameters": {"watermark": True}}, "are not used by the model: ['watermark"),
        (PRONOUNCE, {"inputs": ["read"], "stream": True}, "a stream has one text"),
        (TRANSLATE, {"inputs": "hello"}, "parameters/src_lang is required"),
        (FEATURES_OF_TRANSLATOR, {"inputs": "hello"}, "src_lang is required"),
        (
            FEATURES_OF_TRANSLATOR,
            {"inputs": "hello", "src_lang": "en"},
            "src_lang is 'en', which this model does not know: did you mean ",
        ),
        (FEATURES, {"src_lang": "en"}, "this model has no languages: omit src_lang"),
        (
            TRANSLATE,
            {"inputs": "hello", "parameters": {**PAIR, "tgt_lang": "he"}},
            "parameters/tgt_lang is 'he', which this model does not know: did you mean heb_Hebr?",
        ),
        ("/", {}, "several models are served: POST to /models/ and one of g2p-en, translator"),
    ],
)
def test_what_is_wrong_is_said_in_the_names_of_the_client(http, path, body, part):
    if (body and "inputs" not in body) or path == "/":
        body = {"inputs": "heed", **body}
    answer = http.post(path, json=body)
    assert (answer.status_code, answer.json()["error_type"]) == (400, "validation")
    assert part in answer.json()["error"]


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("/models/g2p", "did you mean g2p-en?"),
        ("/pipeline", "/pipeline does not exist"),
        ("/pipeline/translation/g2p", "did you mean g2p-en?"),
        ("/pipeline/fill-mask/g2p-en", "the tasks are translation, summarization, text2text-gen"),
    ],
)
def test_unknown_models_and_tasks_get_404(http, path, part):
    answer = http.post(path, json={"inputs": "heed"})
    assert (answer.status_code, list(answer.json())) == (404, ["error"])
    assert part in answer.json()["error"]


def test_the_client_raises_its_own_exceptions(stock, protocol_server):
    with pytest.raises(BadRequestError, match="did you mean heb_Hebr"):
        stock(TRANSLATE).translation("hello", src_lang="eng_Latn", tgt_lang="he")
    with pytest.raises(ValidationError, match="send only a b c"):
        stock(PRONOUNCE).text_generation("7")
    with pytest.raises(HfHubHTTPError, match="API key is required"):
        InferenceClient(protocol_server, token="").translation("hello")


def test_the_client_drops_parameters_that_heed_lacks(stock):
    """It reads their names in the error, and warns."""
    client = stock(PRONOUNCE)
    expected = client.text_generation("banana")
    with pytest.warns(UserWarning, match="Ignoring following parameters: typical_p"):
        assert client.text_generation("banana", model=client.model, typical_p=0.5) == expected


@pytest.mark.parametrize(
    ("error", "raised"), [(PassFailed("no"), GenerationError), (Overloaded("no"), OverloadedError)]
)
def test_the_client_raises_the_error_that_ends_a_stream(tiny, error, raised):
    source = SimpleNamespace(target=open_tokenizers(load_bundle(tiny))[1])
    stream = SimpleNamespace(
        call=request_for("/"), model=source, entries=[], sources=SimpleNamespace(event_fields=[])
    )
    event = TokenWriter(stream, ERRORS, None).fail(error).decode()
    with pytest.raises(raised, match="no"):
        list(_stream_text_generation_response(event.splitlines(), details=False))


@pytest.mark.parametrize(
    ("task", "key"),
    [
        ("translation", "translation_text"),
        ("Summarization of news", "summary_text"),
        ("text2text-generation", "generated_text"),
        ("", "generated_text"),
    ],
)
def test_the_path_of_a_single_model_answers_by_its_task(tiny, tmp_path, task, key):
    bundle = copy_of(tiny, tmp_path, "mine", task=task)
    with opened(bundle, protocols="hugging-face") as client:
        (answer,) = client.post("/", json={"inputs": "red"}).json()
        assert list(answer) == [key]
        page = client.get("/")
        assert (page.status_code, page.headers["content-type"][:9]) == (200, "text/html")
        assert client.post("/models/mine", json={"inputs": "red"}).json() == [answer]


@pytest.mark.parametrize(("count", "on_the_loop"), [(1, True), (5000, False)])
def test_many_parameters_are_read_off_the_event_loop(count, on_the_loop):
    parameters = {"bad_words_ids": [[5]] * count} if count > 1 else {}
    body = {"inputs": "a", "parameters": parameters}
    with opened(DEFAULT_BUNDLE, protocols="hugging-face") as client:
        status, called = client.portal.call(called_for, client.app, PRONOUNCE, body)
    assert (status, read_parameters.__name__ in called) == (200, on_the_loop)


def test_the_examples_of_the_document_are_answered():
    with opened(DEFAULT_BUNDLE, protocols="hugging-face") as client:
        paths = client.get("/openapi.json").json()["paths"]
        mine = {
            path: each["post"] for path, each in paths.items() if path[:4] in ("/", "/mod", "/pip")
        }
        assert len(mine) == 6
        for path, operation in mine.items():
            filled = path.format(model="g2p-en", task="summarization")
            examples = operation["requestBody"]["content"]["application/json"]["examples"]
            for example in examples.values():
                assert client.post(filled, json=example["value"]).status_code == 200
            named = {each["name"]: each.get("example") for each in operation["parameters"]}
            assert named.get("task") is None


def test_what_the_service_does_without_the_protocol_says_how_to_have_it(client):
    for path in ("/", PRONOUNCE, "/pipeline/translation/g2p-en"):
        answer = client.post(path, json={"inputs": "heed"})
        assert answer.status_code in (404, 405)
        assert "HEED_PROTOCOLS=hugging-face" in answer.json()["detail"]
    assert "HEED" not in client.delete("/").json()["detail"]


def test_the_program_of_the_documentation_prints_what_is_shown(protocol_server):
    ((code, shown),) = (each for each in programs(PAGE, "python") if "huggingface_hub" in each[0])
    code = code.replace("http://localhost:8000", protocol_server)
    done = run_python("-c", code, env={**os.environ, "API_KEY": KEY})
    assert (done.stdout, done.stderr) == (shown, "")
