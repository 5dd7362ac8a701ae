"""The service as a client meets it."""

import asyncio
import base64
import re

import httpx2
import numpy as np
import pytest

WORDS = ["cat", "dog", "house", "river", "stone", "cloud", "paper", "light", "garden", "window"]
CLIENTS = range(50)


def test_decode_answers_in_the_shape_of_the_contract(post):
    status, answer = post("/v1/decode", source=["attention", "transformer"])
    assert status == 200
    assert answer.keys() == {"model", "results", "usage"}
    assert answer["model"] == "g2p-en"
    first = answer["results"][0]
    assert first.keys() == {"hypotheses", "source_tokens"}
    assert first["source_tokens"] == 9
    (hypothesis,) = first["hypotheses"]
    assert hypothesis["text"] == "AH0 T EH1 N SH AH0 N"
    assert hypothesis["tokens"] == ["AH0", "T", "EH1", "N", "SH", "AH0", "N", "<eos>"]
    assert len(hypothesis["token_ids"]) == len(hypothesis["log_probs"]) == 8
    assert hypothesis["score"] == pytest.approx(np.mean(hypothesis["log_probs"]))
    assert hypothesis["finish_reason"] == "eos"
    assert "attention" not in hypothesis
    generated = sum(len(r["hypotheses"][0]["tokens"]) for r in answer["results"])
    assert answer["usage"] == {"source_tokens": 20, "target_tokens": generated}


def test_a_text_alone_is_a_list_of_one_and_case_does_not_matter(post):
    texts = [
        [r["hypotheses"][0]["text"] for r in post("/v1/decode", source=source)[1]["results"]]
        for source in ("don't", "Don't", "DON’T", ["don't"], " don't\n")
    ]
    assert texts == [texts[0]] * 5
    assert len(texts[0]) == 1


def test_ids_are_read_like_the_text_they_stand_for(post):
    ids = post("/v1/tokenize", text="heed")[1]["results"][0]["token_ids"]
    by_text = post("/v1/decode", source="heed", attention={})[1]
    assert post("/v1/decode", source=[ids], attention={})[1] == by_text


def test_beams_come_back_best_first_each_with_its_own_attention(post):
    body = {"source": ["read", "ax"], "beam_size": 4, "num_hypotheses": 3, "attention": {}}
    _, answer = post("/v1/decode", **body)
    for source, result in zip(body["source"], answer["results"], strict=True):
        hypotheses = result["hypotheses"]
        scores = [hypothesis["score"] for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert len({hypothesis["text"] for hypothesis in hypotheses}) == 3
        for hypothesis in hypotheses:
            assert hypothesis["score"] == pytest.approx(np.mean(hypothesis["log_probs"]), rel=1e-5)
            target = [hypothesis["token_ids"]]
            _, given = post("/v1/attention", source=[source], target=target)
            (block,), (same,) = hypothesis["attention"], given["results"][0]["attention"]
            assert same["rows"] == block["rows"]
            np.testing.assert_allclose(block["data"], same["data"], atol=5e-3)


@pytest.mark.parametrize("path", ["/v1/decode", "/v1/attention"])
def test_attention_blocks_are_labelled_and_unpadded(post, path):
    wanted = {"kinds": ["encoder", "decoder", "cross"], "layers": [0, -1], "heads": [-1]}
    status, answer = post(path, source=["heed", "transformer"], attention=wanted)
    assert status == 200
    for text, result in zip(["heed", "transformer"], answer["results"], strict=True):
        blocks = (result if path == "/v1/attention" else result["hypotheses"][0])["attention"]
        assert [block["kind"] for block in blocks] == wanted["kinds"]
        for block in blocks:
            data = np.array(block["data"])
            assert list(data.shape) == block["shape"]
            assert block["shape"] == [2, 1, len(block["rows"]), len(block["columns"])]
            assert block["layers"] == [0, 3 if block["kind"] == "encoder" else 2]
            assert block["heads"] == [3]
            assert block["axes"][:2] == ["layer", "head"]
            np.testing.assert_allclose(data.sum(-1), 1, atol=1e-5)
        encoder, decoder, cross = blocks
        assert [token["text"] for token in cross["columns"]] == list(text)
        assert encoder["rows"] == encoder["columns"] == cross["columns"]
        assert decoder["rows"] == cross["rows"]
        assert decoder["columns"][0] == {"text": "<bos>", "id": 1, "start": None, "end": None}
        assert decoder["columns"][1:] == decoder["rows"][:-1]
        assert cross["rows"][-1] == {"text": "<eos>", "id": 2, "start": None, "end": None}
        assert (np.triu(np.array(decoder["data"]), 1) == 0).all()


def test_offsets_point_into_the_text_that_was_typed(post):
    block = post("/v1/attention", source="  Don’t")[1]["results"][0]["attention"][0]
    found = [(each["text"], each["start"], each["end"]) for each in block["columns"]]
    assert found == [(letter, i, i + 1) for i, letter in enumerate("don't", 2)]


def test_attention_of_the_decoded_target_is_that_of_the_same_target_given(post):
    decoded = post("/v1/attention", source="attention")[1]
    again = post("/v1/attention", source="attention", target=decoded["results"][0]["target"])[1]
    first, second = (answer["results"][0]["attention"][0] for answer in (decoded, again))
    assert first["rows"] == second["rows"]
    np.testing.assert_allclose(first["data"], second["data"], atol=1e-6)


@pytest.mark.parametrize("pooling", ["none", "mean"])
def test_base64_holds_the_same_numbers_cut_before_they_are_scaled(post, pooling):
    how = {"source": "heed", "pooling": pooling}
    field = "hidden" if pooling == "none" else "embedding"
    whole = np.array(post("/v1/encode", **how)[1]["results"][0][field])[..., :5]
    how |= {"dimensions": 5, "normalize": True}
    (plain,) = post("/v1/encode", **how)[1]["results"]
    expected = whole / np.linalg.norm(whole, axis=-1, keepdims=True)
    np.testing.assert_allclose(plain[field], expected, rtol=1e-5)
    (packed,) = post("/v1/encode", **how, encoding="base64")[1]["results"]
    assert packed["shape"] == plain["shape"] == [*expected.shape]
    unpacked = np.frombuffer(base64.b64decode(packed[field]), "<f4").reshape(packed["shape"])
    np.testing.assert_allclose(unpacked, plain[field], rtol=1e-6)


def test_a_vector_has_no_more_dimensions_than_the_model(post):
    status, problem = post("/v1/encode", source="heed", dimensions=193)
    assert (status, problem["errors"][0]["pointer"]) == (422, "/dimensions")
    assert "give 1 to 192" in problem["detail"]


@pytest.mark.parametrize("pooling", ["mean", "max", "first", "last"])
def test_pooling_is_numpys_over_the_hidden_states(post, pooling):
    sources = ["a", "transformer"]
    hidden = post("/v1/encode", source=sources)[1]["results"]
    pooled = post("/v1/encode", source=sources, pooling=pooling)[1]["results"]
    for states, vector, text in zip(hidden, pooled, sources, strict=True):
        states_array = np.array(states["hidden"])
        assert states["shape"] == list(states_array.shape)
        assert states["tokens"] == list(text)
        reduce = {"mean": np.mean, "max": np.max, "first": lambda x, _: x[0]}
        expected = reduce.get(pooling, lambda x, _: x[-1])(states_array, 0)
        np.testing.assert_allclose(vector["embedding"], expected, rtol=1e-5, atol=1e-6)
    (unit,) = post("/v1/encode", source="a", pooling=pooling, normalize=True)[1]["results"]
    assert np.linalg.norm(unit["embedding"]) == pytest.approx(1)
    (units,) = post("/v1/encode", source="heed", normalize=True)[1]["results"]
    np.testing.assert_allclose(np.linalg.norm(units["hidden"], axis=1), 1, rtol=1e-5)


def test_tokenize_both_sides(post):
    (source,) = post("/v1/tokenize", text="it's")[1]["results"]
    assert source["tokens"] == ["i", "t", "'", "s"]
    assert source["offsets"] == [[0, 1], [1, 2], [2, 3], [3, 4]]
    (target,) = post("/v1/tokenize", text="IH1 T S", side="target")[1]["results"]
    assert target["tokens"] == ["IH1", "T", "S", "<eos>"]
    assert target["offsets"] == [[0, 3], [4, 5], [6, 7], None]


def test_models_are_described(client, monkeypatch):
    monkeypatch.setattr(
        "service.api.endpoints.models.read_cpuinfo", lambda: "flags\t: fpu avx2 avx_vnni\n"
    )
    models = client.get("/v1/models").json()["models"]
    assert [model["name"] for model in models] == ["g2p-en", "tiny"]
    g2p = client.get("/v1/models/g2p-en").json()
    assert g2p == models[0]
    assert g2p["attention"] == ["encoder", "decoder", "cross"]
    assert g2p["provider"] == "CPUExecutionProvider"
    assert g2p["instructions"] == ["AVX2", "VNNI"]
    assert g2p["limits"] == {"max_source_length": 64, "max_target_length": 64}
    assert "Carnegie Mellon" in g2p["attribution"]


def test_every_answer_carries_a_request_id_and_timing(client):
    body = {"model": "g2p-en", "source": "a", "attention": {}}
    answer = client.post("/v1/decode", json=body, headers={"X-Request-Id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    stages = [part.split(";")[0] for part in answer.headers["server-timing"].split(", ")]
    assert stages == ["tokenize", "queue", "encode", "decode", "attention", "serialize"]
    hostile = client.get("/livez", headers={"X-Request-Id": "a b"}).headers["x-request-id"]
    assert len(hostile) == 32


@pytest.mark.parametrize("count", [4, pytest.param(20, marks=pytest.mark.long)])
def test_fifty_clients_each_get_their_own_answers(server, count):
    """Each asks for so many words, one after the other; alone is the oracle."""
    words = [
        [f"{WORDS[i % 10]}{chr(97 + j)}{WORDS[i // 10]}" for j in range(count)] for i in CLIENTS
    ]

    async def ask(client, word):
        answer = await client.post("/v1/decode", json={"source": word})
        return answer.json()["results"][0]["hypotheses"][0]["text"]

    async def run():
        limits = httpx2.Limits(max_connections=len(CLIENTS))
        async with httpx2.AsyncClient(base_url=server, timeout=60, limits=limits) as client:

            async def one_client(mine):
                return [await ask(client, word) for word in mine]

            found = await asyncio.gather(*(one_client(mine) for mine in words))
            alone = [await one_client(mine) for mine in words]
        return found, alone

    found, alone = asyncio.run(run())
    assert found == alone


def test_the_documentation_loads_nothing_from_elsewhere(client):
    """Links and namespaces may name other hosts; images, scripts and styles may not."""
    text = client.get("/docs").text
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", text)
    assets = re.findall(r'(?:src|href)="([^"]+)"', text)
    assert len(assets) >= 2
    for asset in assets:
        answer = client.get(asset)
        assert answer.status_code == 200
        assert not re.search(r'src:"(?:https?:)?//|url\(["\']?(?:https?:)?//', answer.text)


@pytest.mark.parametrize(
    "path",
    [
        *("/livez", "/readyz", "/readyz/g2p-en", "/v1/models", "/v1/models/g2p-en"),
        *("/v1/models/none", "/", "/docs", "/redoc", "/redoc.js", "/openapi.json"),
        "/static-offline-docs/swagger-ui.css",
    ],
)
def test_head_answers_like_get_without_the_body(server, path):
    get, head = (httpx2.request(method, f"{server}{path}") for method in ("GET", "HEAD"))
    assert head.status_code == get.status_code
    assert (get.content != b"", head.content) == (True, b"")
    changing = {"date", "x-request-id", "transfer-encoding"}  # the last one is of the body alone
    found, expected = (
        {name: value for name, value in answer.headers.items() if name not in changing}
        for answer in (head, get)
    )
    assert found == expected


def test_head_is_refused_where_get_is(server):
    answer = httpx2.head(f"{server}/v1/decode")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST, OPTIONS")


def test_head_is_not_an_operation_of_the_openapi_document(client):
    paths = client.get("/openapi.json").json()["paths"]
    assert {method for methods in paths.values() for method in methods} == {"get", "post"}
