"""Embeddings by the stock client of OpenAI, compared with the encoder's output.

Oracle: the mean of the vectors that /v1/encode returns, and its length by NumPy.
"""

import base64
import os
from pathlib import Path

import httpx2
import numpy as np
import openai
import pytest

from tests.conftest import KEY
from tests.documentation import programs
from tests.service.processes import run_python

PAGE = (Path(__file__).parents[3] / "docs" / "protocols.md").read_text(encoding="utf-8")
IDS = [[5, 6, 7, 2], [8, 2]]
MANY_IDS = [[4, 6, 2]] * 256 + [[9]]  # one more than the limit, without special tokens


@pytest.fixture(scope="module")
def stock(protocol_server):
    with openai.OpenAI(api_key=KEY, base_url=f"{protocol_server}/v1", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def embed(stock):
    def embed(given, model="g2p-en", **options):
        return stock.embeddings.create(input=given, model=model, **options)

    return embed


@pytest.fixture(scope="module")
def results_of(protocol_server):
    """POST to our own endpoints: (path, **body) -> results."""
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx2.Client(base_url=protocol_server, headers=headers) as client:
        yield lambda path, **body: client.post(path, json=body).json()["results"]


@pytest.fixture(scope="module")
def means(results_of):
    """The mean of the vectors of each source."""

    def means(source, model="g2p-en", **body):
        results = results_of("/v1/encode", model=model, source=source, **body)
        return [np.mean(result["hidden"], axis=0) for result in results]

    return means


def unit(vector):
    return vector / np.linalg.norm(vector)


def test_the_program_of_the_documentation_prints_what_is_shown(protocol_server):
    code, shown = next(programs(PAGE, "python"))
    code = code.replace("http://localhost:8000", protocol_server)
    done = run_python("-c", code, env={**os.environ, "API_KEY": KEY})
    assert (done.stdout, done.stderr) == (shown, "")


@pytest.mark.parametrize(
    ("given", "source"),
    [
        ("heed", ["heed"]),
        (["heed", "attention"], ["heed", "attention"]),
        (IDS[0], IDS[:1]),
        (IDS, IDS),
    ],
    ids=["text", "texts", "ids", "lists of ids"],
)
def test_an_embedding_is_the_mean_of_the_vectors_scaled_to_length_1(embed, means, given, source):
    answer = embed(given)  # the client asks for base64, and decodes it
    expected = [unit(mean) for mean in means(source)]
    assert [each.index for each in answer.data] == list(range(len(source)))
    np.testing.assert_allclose([each.embedding for each in answer.data], expected, atol=1e-6)
    assert (answer.object, answer.data[0].object, answer.model) == ("list", "embedding", "g2p-en")


def test_floats_and_base64_are_the_same_numbers(embed):
    floats, encoded = (embed("heed", encoding_format=each) for each in ("float", "base64"))
    numbers = np.frombuffer(np.array(floats.data[0].embedding, "<f4").tobytes(), "<f4")
    sent = encoded.data[0].embedding
    decoded = np.frombuffer(base64.b64decode(sent), "<f4")
    np.testing.assert_array_equal(decoded, numbers)


def test_dimensions_are_the_first_numbers_scaled_again(embed, means):
    (vector,) = means(["heed"])
    answer = embed("heed", dimensions=16, user="someone")
    np.testing.assert_allclose(answer.data[0].embedding, unit(vector[:16]), atol=1e-6)


def test_usage_counts_the_tokens_that_are_encoded(embed):
    usage = embed(IDS).usage
    assert usage.prompt_tokens == usage.total_tokens == sum(map(len, IDS))


def test_a_language_is_named_in_the_body(embed, means):
    languages = {"source_language": "eng_Latn"}
    answer = embed("hello", model="translator", extra_body=languages)
    (vector,) = means("hello", model="translator", **languages)
    np.testing.assert_allclose(answer.data[0].embedding, unit(vector), atol=1e-6)


@pytest.mark.parametrize(
    ("given", "options", "error", "param", "part"),
    [
        ("heed", {"dimensions": 4096}, openai.BadRequestError, "dimensions", "4096"),
        ("heed", {"encoding_format": "hex"}, openai.BadRequestError, "encoding_format", "base64"),
        ("heed", {"extra_body": {"dimension": 3}}, openai.BadRequestError, "dimension", "did you"),
        ([], {}, openai.BadRequestError, "input", "1 or more"),
        (["heed", "7"], {}, openai.BadRequestError, "input", "/input/1"),
        ([5, 10**6], {}, openai.BadRequestError, "input", "/input/0/1"),
        ("a" * 500, {}, openai.BadRequestError, "input", "/input"),
        ("a" * (1 << 20), {}, openai.BadRequestError, None, "1048576 bytes"),
        ("heed", {"model": "gpt"}, openai.NotFoundError, "model", "g2p-en, translator"),
        ("hello", {"model": "translator"}, openai.BadRequestError, "source_language", "eng_Latn"),
        # Too many are refused as such, whatever those beyond the limit hold
        (MANY_IDS, {"model": "translator"}, openai.BadRequestError, "input", "257 sequences"),
    ],
)
def test_the_client_raises_what_it_raises_for_openai(embed, given, options, error, param, part):
    with pytest.raises(error) as refused:
        embed(given, **options)
    assert refused.value.param == param
    assert part in refused.value.message


@pytest.mark.parametrize(
    ("ids", "refused"),
    [
        ([4, 6, 2], []),  # a language, a word, the end
        ([[6, 6, 6, 2], [5, 2]], []),  # other languages
        ([4, 6], [0]),  # no end
        ([6, 2, 8], [0]),
        ([8, 6, 2], [0]),  # no language
        ([2], [0]),
        ([[4, 6, 2], [8, 8], [5, 7, 2], [9, 9]], [1, 3]),
        ([[9]] * 12, range(10)),
    ],
)
def test_ids_without_the_special_tokens_of_the_model_are_refused(embed, means, ids, refused):
    source = ids if isinstance(ids[0], list) else [ids]
    if refused:
        with pytest.raises(openai.BadRequestError) as error:
            embed(ids, model="translator")
        found = [f"/input/{i} lacks special tokens: this model needs" for i in refused]
        assert all(each in error.value.message for each in found[:2])
        assert error.value.message.count("lacks special") <= len(refused)
        told = error.value.message
        assert "the ids of a source_language at the beginning and 2 (<eos>) at the end" in told
        assert "check_embedding_ctx_length=False" in told
        assert '"check_special_tokens": false' in told
    answer = embed(ids, model="translator", extra_body={"check_special_tokens": False})
    expected = [unit(mean) for mean in means(source, model="translator")]
    np.testing.assert_allclose([each.embedding for each in answer.data], expected, atol=1e-6)
    if not refused:
        assert embed(ids, model="translator").data == answer.data


def test_ids_that_tokenize_returns_are_embedded_as_the_text(embed, results_of):
    language = {"source_language": "fra_Latn"}
    (result,) = results_of("/v1/tokenize", model="translator", text="hello one", **language)
    (expected,) = embed("hello one", model="translator", extra_body=language).data
    (found,) = embed([result["token_ids"]], model="translator").data
    assert found == expected


def test_the_client_lists_and_finds_the_models(stock):
    listed = stock.models.list()
    assert (listed.object, [each.id for each in listed]) == ("list", ["g2p-en", "translator"])
    assert {each.object for each in listed} == {"model"}
    found = stock.models.retrieve("translator")
    assert (found.id, found.object, found.name) == ("translator", "model", "translator")
    with pytest.raises(openai.NotFoundError, match="no model 'gpt' is served: give one of") as gone:
        stock.models.retrieve("gpt")
    assert (gone.value.code, gone.value.param) == ("unknown_model", "model")
    problem = gone.value.response.json()
    assert (problem["status"], problem["code"]) == (404, "unknown_model")


def test_without_the_protocol_the_list_is_ours_alone(client):
    assert client.get("/v1/models").json().keys() == {"models", "failed"}
    assert not {"id", "object"} & client.get("/v1/models/g2p-en").json().keys()


def test_a_wrong_key_is_an_authentication_error(stock):
    with pytest.raises(openai.AuthenticationError, match="not an API key"):
        stock.with_options(api_key="wrong").embeddings.create(input="heed", model="g2p-en")


CALLS = {
    "chat": lambda client: client.chat.completions.create(model="g2p-en", messages=[]),
    "completions": lambda client: client.completions.create(model="g2p-en", prompt="heed"),
    "responses": lambda client: client.responses.create(model="g2p-en", input="heed"),
    "moderations": lambda client: client.moderations.create(input="heed"),
    "files": lambda client: client.files.list(),
    "images": lambda client: client.images.generate(prompt="heed"),
    "vector stores": lambda client: client.vector_stores.list(),
    "jobs": lambda client: client.fine_tuning.jobs.list(),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_an_encoder_decoder_cannot_do_is_not_there(stock, name):
    with pytest.raises(openai.NotFoundError) as refused:
        CALLS[name](stock)
    assert (refused.value.code, refused.value.type) == ("not_found", "invalid_request_error")
    if name in ("chat", "completions", "responses"):
        assert "did you mean /v1/decode?" in refused.value.message
