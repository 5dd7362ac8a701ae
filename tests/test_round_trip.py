"""torch = ONNX = HTTP, on the default model as it ships."""

import json
import os
import re
from pathlib import Path

import httpx2
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from model.__main__ import app
from model.checkpoint import TrainedModel, load_model
from model.data.pairs import read_pairs
from model.data.tokenizers import Unit, build_tokenizer
from model.export.bundle import WeightType, write_bundle
from model.export.files.manifest import Card
from model.network.config import ScoreFunction, TransformerConfig
from model.network.transformer import Transformer
from tests.conftest import opened
from tests.documentation import events_of
from tests.torch_scores import log_probs_of
from tests.tracing import without_gates

WORDS = Path(__file__).parent / "words.txt"


@pytest.fixture(scope="module", params=["words", pytest.param("pairs", marks=pytest.mark.long)])
def words(request):
    """200 words: everyday ones, or the first of the pairs that the variable PAIRS names."""
    if request.param == "words":
        return WORDS.read_text().split()
    if "PAIRS" not in os.environ:
        pytest.skip("PAIRS names no file of source<TAB>target lines")
    pairs = read_pairs(Path(os.environ["PAIRS"]))
    return list(dict.fromkeys(source for source, _ in pairs))[:200]


def test_http_decodes_what_the_torch_model_decodes(fp32_server, g2p, words, tmp_path):
    assert len(words) == 200
    (tmp_path / "pairs.tsv").write_text("".join(f"{word}\tAH0\n" for word in words))
    arguments = ["evaluate", g2p, tmp_path / "pairs.tsv", "--predictions", tmp_path / "out.tsv"]
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    torchs = dict(line.split("\t") for line in (tmp_path / "out.tsv").read_text().splitlines())
    answer = httpx2.post(f"{fp32_server}/v1/decode", json={"source": words}, timeout=60).json()
    ours = [result["hypotheses"][0]["text"] for result in answer["results"]]
    assert dict(zip(words, ours, strict=True)) == torchs


@torch.no_grad()
def test_http_encodes_what_the_torch_model_encodes(fp32_server, g2p):
    trained = load_model(g2p)
    words = WORDS.read_text().split()[:20]
    answer = httpx2.post(f"{fp32_server}/v1/encode", json={"source": words}, timeout=60).json()
    for word, result in zip(words, answer["results"], strict=True):
        ids = trained.source_tokenizer.encode(word).ids
        memory, _ = trained.transformer.encoder(torch.tensor([ids]), torch.tensor([len(ids)]))
        np.testing.assert_allclose(result["hidden"], memory[0].numpy(), rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("beam_size", [1, 3])
def test_http_shows_the_attention_and_scores_of_the_torch_model(fp32_server, g2p, beam_size):
    """Every hypothesis has its own attention weights and log-probs."""
    trained = load_model(g2p)
    model = trained.transformer
    kinds = ["encoder", "decoder", "cross"]
    words = WORDS.read_text().split()[:20]
    beams = {"beam_size": beam_size, "num_hypotheses": beam_size}
    body = {"source": words, "attention": {"kinds": kinds}, **beams}
    answer = httpx2.post(f"{fp32_server}/v1/decode", json=body, timeout=60).json()
    returned = [
        (word, hypothesis)
        for word, result in zip(words, answer["results"], strict=True)
        for hypothesis in result["hypotheses"]
    ]
    assert len(returned) == beam_size * len(words)
    for word, hypothesis in returned:
        source_ids = torch.tensor([trained.source_tokenizer.encode(word).ids])
        target_ids = torch.tensor([[model.config.bos_id, *hypothesis["token_ids"][:-1]]])
        lengths = torch.tensor([source_ids.size(1)]), torch.tensor([target_ids.size(1)])
        memory, attended = model.encoder(source_ids, lengths[0])
        encoder = [layer.weights for layer in attended]
        decoded = model.decoder(target_ids, lengths[1], model.decoder.cross(memory), lengths[0])
        expected = [encoder, decoded.decoder_attention, decoded.cross_attention]
        for block, weights in zip(hypothesis["attention"], expected, strict=True):
            theirs = torch.cat(weights).numpy()
            np.testing.assert_allclose(block["data"], theirs, rtol=1e-4, atol=1e-5)
        log_probs = model.log_probs(decoded.hidden)[0]
        chosen = log_probs.gather(1, torch.tensor(hypothesis["token_ids"]).unsqueeze(1))
        np.testing.assert_allclose(hypothesis["log_probs"], chosen[:, 0], rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.long
@pytest.mark.parametrize(
    ("score_function", "d_model", "num_heads", "d_qk", "d_v"),
    [
        (ScoreFunction.scaled_dot_product, 35, 5, 7, 7),
        (ScoreFunction.scaled_dot_product, 36, 4, 5, 7),
        (ScoreFunction.additive, 36, 4, 5, 7),
        (ScoreFunction.gaussian, 36, 4, 5, 7),
    ],
)
def test_heads_of_any_size_and_score_are_served_over_http(
    tmp_path, score_function, d_model, num_heads, d_qk, d_v
):
    """Random weights of 5 heads of 7, and of d_qk, d_v and d_model / num_heads that all differ."""
    torch.manual_seed(0)
    source = build_tokenizer(["red green blue"], Unit.words)
    config = TransformerConfig(
        source_vocab_size=source.get_vocab_size(),
        target_vocab_size=source.get_vocab_size(),
        d_model=d_model,
        d_ff=20,
        num_heads=num_heads,
        d_qk=d_qk,
        d_v=d_v,
        score_function=score_function,
        num_encoder_layers=1,
        num_decoder_layers=1,
    )
    trained = TrainedModel(Transformer(config).eval(), source, source)
    card = Card(name="wide", task="t", licence="Apache-2.0", attribution="-", notice="-")
    write_bundle(trained, card, WeightType.fp32, tmp_path / "wide")
    body = {
        "source": "red blue",
        "target": [[5, 4, 6]],
        "attention": {"kinds": ["decoder", "cross"]},
    }
    with opened(tmp_path / "wide") as client:
        blocks = client.post("/v1/attention", json=body).json()["results"][0]["attention"]
    model, length = trained.transformer, torch.tensor([2])
    memory, _ = model.encoder(torch.tensor([source.encode("red blue").ids]), length)
    inputs, cross = torch.tensor([[config.bos_id, 5, 4]]), model.decoder.cross(memory)
    decoded = model.decoder(inputs, torch.tensor([3]), cross, length)
    pairs = zip(blocks, (decoded.decoder_attention, decoded.cross_attention), strict=True)
    for block, weights in pairs:
        np.testing.assert_allclose(block["data"][0], weights[0][0].numpy(), rtol=1e-4, atol=1e-5)


NOUNS = {"cat": "chat", "dog": "chien", "town": "village", "boat": "bateau"}
COLOURS = {"red": "rouge", "green": "vert", "yellow": "jaune", "white": "blanc"}
PHRASES = {
    f"The {colour} {noun}s, {year}": f"Les {NOUNS[noun]}s {COLOURS[colour]}s ({year})"
    for noun in NOUNS
    for colour in COLOURS
    for year in (1987, 2026)
}


EXAMPLES = [*PHRASES][:2]


def command(*arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, (done.output, done.exception)
    return done


@pytest.fixture(scope="module")
def phrases(tmp_path_factory):
    """A bundle of a model of pieces that was trained for seconds, what torch decodes, and the
    standard error of the export."""
    folder = tmp_path_factory.mktemp("pieces")
    pairs, run, bundle, texts = (folder / name for name in ("p.tsv", "run", "phrases", "texts"))
    pairs.write_text("".join(f"{source}\t{target}\n" for source, target in PHRASES.items()))
    units = ["--source-unit", "pieces", "--target-unit", "pieces", "--vocabulary-size", "60"]
    shape = "--d-model 32 --d-ff 64 --num-heads 2 --num-encoder-layers 1 --num-decoder-layers 1"
    steps = "--epochs 20 --batch-size 8 --learning-rate 1e-2 --dropout 0"
    command("train", pairs, "--dev", pairs, "--run", run, *units, *shape.split(), *steps.split())
    examples = [word for source in EXAMPLES for word in ("--example", source)]
    with without_gates():
        progress = command("export", run, bundle, "--precision", "both", *examples).stderr
    command("evaluate", run, pairs, "--predictions", texts)
    torchs = dict(line.split("\t") for line in texts.read_text().splitlines())
    return bundle, torchs, progress


def test_an_export_shows_each_graph_and_what_it_compares(phrases):
    lines = [line.split(" s  ")[1] for line in phrases[2].splitlines()]
    graphs = [line for line in lines if line.startswith("exporting")]
    assert graphs[0] == "exporting graph 1 of 5, encoder, at fp32 and int8"
    assert len(graphs) == 5
    assert lines[0] == "computing torch's results for the self-check"
    assert lines[-1] == "comparing the int8 graphs with torch"


def test_a_bundle_needs_no_task_licence_or_notice(phrases):
    bundle = phrases[0]
    keys = json.loads((bundle / "bundle.json").read_text()).keys()
    assert not keys & {"task", "licence", "attribution"}
    assert not (bundle / "NOTICE").exists()
    with opened(bundle) as client:
        (card,) = client.get("/v1/models").json()["models"]
    assert [card["task"], card["licence"], card["attribution"]] == ["", "", ""]


def test_the_examples_of_an_export_are_requests(phrases):
    bundle, torchs, _ = phrases
    with opened(bundle, precision="fp32") as client:
        examples = client.get("/v1/models/phrases").json()["examples"]
        answers = [client.post("/v1/decode", json=example).json() for example in examples]
    found = [answer["results"][0]["hypotheses"][0]["text"] for answer in answers]
    assert found == [torchs[source] for source in EXAMPLES]


def test_pieces_are_served_with_the_spaces_that_torch_decodes(phrases):
    bundle, torchs, _ = phrases
    assert sum(torchs[source] == target for source, target in PHRASES.items()) > len(PHRASES) / 2
    with opened(bundle, precision="fp32") as client:
        sources = [*PHRASES]
        answer = client.post("/v1/decode", json={"source": sources}).json()
        found = [result["hypotheses"][0] for result in answer["results"]]
        assert dict(zip(sources, (each["text"] for each in found), strict=True)) == torchs
        streamed = client.post("/v1/decode", json={"source": sources[0], "stream": True})
        parts = [data["text"] for name, data in events_of(streamed.text) if name == "token"]
        assert "".join(parts) == torchs[sources[0]]
        text = "  The red\u00a0 cats,2026 "
        shown = client.post("/v1/tokenize", json={"text": text}).json()["results"][0]
        ids = {"token_ids": [found[0]["token_ids"]]}
        decoded = client.post("/v1/detokenize", json=ids).json()["results"][0]
    assert decoded["text"] == torchs[sources[0]]
    covered = "".join(text[start:end] for start, end in shown["offsets"])
    assert covered == re.sub(r"\s", "", text)


def test_log_probs_of_pieces_are_those_of_torch(phrases):
    trained = load_model(phrases[0])
    config, (source, target) = trained.transformer.config, [*PHRASES.items()][5]
    with opened(phrases[0], precision="fp32") as client:
        answer = client.post("/v1/score", json={"source": source, "target": target}).json()
    source_ids = trained.source_tokenizer.encode(source).ids
    target_ids = [*trained.target_tokenizer.encode(target).ids, config.eos_id]
    log_probs = log_probs_of(trained, source_ids, [config.bos_id, *target_ids[:-1]])
    expected = log_probs[range(len(target_ids)), target_ids]
    np.testing.assert_allclose(answer["results"][0]["log_probs"], expected, rtol=1e-4, atol=1e-5)
