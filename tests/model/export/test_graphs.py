"""torch and ONNX Runtime, on sizes that no trace has seen."""

import dataclasses
import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from safetensors import safe_open

from model.checkpoint import TrainedModel, load_model
from model.data.pairs import pad
from model.data.tokenizers import Unit, build_tokenizer
from model.export.bundle import WeightType, write_bundle
from model.export.files.manifest import Card, Precision
from model.export.files.weights import round_weights
from model.export.graphs.exporter import LARGEST_INLINE
from model.network.config import (
    Activation,
    NormKind,
    Positions,
    ScoreFunction,
    Tied,
    TransformerConfig,
)
from model.network.transformer import Transformer
from service.bundle.manifest import load_bundle
from service.runtime.self_check import COMPARISONS, check_parity, compare_decoding
from service.runtime.session import Session
from service.settings.settings import Provider, Settings

CARD = Card(name="random", task="tests", licence="Apache-2.0", attribution="nobody", notice="none")
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def random_config(seed, source_vocab_size, target_vocab_size):
    """Small sizes; the first six seeds have every score function before and after the norm.

    GroupQueryAttention takes the heads of 0, with rotary, and 6, without, both with a relative
    bias; rotary is also combined with heads that it refuses (3) and other scores (8). The weight of
    an additive score is large enough to be stored (4). The first four seeds have every activation
    and every way of tying.
    """
    random = np.random.default_rng(seed)
    num_heads = int(random.integers(1, 6))
    divides = bool(random.integers(2))
    head_dim = {0: 16, 4: 72}.get(seed % 6)
    config = TransformerConfig(
        source_vocab_size=source_vocab_size,
        target_vocab_size=target_vocab_size,
        d_model=num_heads * int(random.integers(2, 8)) if divides else int(random.integers(6, 36)),
        d_ff=int(random.integers(8, 40)),
        num_heads=num_heads,
        d_qk=head_dim or (0 if divides else int(random.integers(1, 9))),
        d_v=head_dim or (0 if divides else int(random.integers(1, 9))),
        score_function=list(ScoreFunction)[seed % 3],
        norm=list(NormKind)[(seed + seed // 3) % 3],
        norm_epsilon=[1e-5, 1e-6][seed % 2],
        norm_first=bool(seed // 3 % 2),
        final_norm=[None, True, False][seed % 3],
        embedding_norm=seed % 5 == 1,
        embedding_scale=[0.0, 1.0, 2.5][seed // 2 % 3],
        positions=list(Positions)[seed % 3],
        relative_distance=[3, 0, 40][seed % 3],
        relative_per_layer=seed % 4 == 2,
        activation=list(Activation)[seed % 4],
        gated=seed % 3 > 0,
        tied=list(Tied)[seed % 4],
        num_encoder_layers=int(random.integers(1, 3)),
        num_decoder_layers=int(random.integers(1, 3)),
        max_source_length=33,
        max_target_length=33,
    )
    rotary = seed % 4 in (0, 3) and config.score_function != ScoreFunction.additive
    return dataclasses.replace(config, rotary=rotary, d_qk=config.d_qk + config.d_qk % 2 * rotary)


# The first three seeds have every score function, with and without rotary positions
SEEDS = [*range(2), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 100))]


@pytest.fixture(scope="module", params=SEEDS)
def exported(request, tmp_path_factory):
    """A bundle's folder and the torch model that it holds."""
    torch.manual_seed(request.param)
    source = build_tokenizer(["abcdefgh"], Unit.characters)
    target = build_tokenizer(["s t u v w x y z"], Unit.words)
    config = random_config(request.param, source.get_vocab_size(), target.get_vocab_size())
    model = Transformer(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    folder = tmp_path_factory.mktemp("export") / "random"
    weights = list(WeightType)[request.param % 2]
    round_weights(model, weights)
    write_bundle(TrainedModel(model, source, target), CARD, weights, folder, Precision.all)
    return folder, load_model(folder).transformer


def run(folder, graph, **feeds):
    session = ort.InferenceSession(
        folder / "fp32" / f"{graph}.onnx", providers=["CPUExecutionProvider"]
    )
    outputs = session.run(None, {name: np.asarray(value) for name, value in feeds.items()})
    return dict(zip((output.name for output in session.get_outputs()), outputs, strict=True))


def ragged(lengths, vocabulary, seed=0):
    random = np.random.default_rng(seed)
    return pad([random.integers(4, vocabulary, n).tolist() for n in lengths], 0)


def cross_of(encoded):
    return {name: value for name, value in encoded.items() if name.startswith("cross")}


def assert_equal_inside(ours, torchs, *lengths):
    """Compare (B, ..., an axis for each of `lengths`) outside padding."""
    for i, inside in enumerate(zip(*lengths, strict=True)):
        where = (i, Ellipsis, *(slice(length) for length in inside))
        np.testing.assert_allclose(ours[where], torchs[where].numpy(), **TOLERANCE)


@torch.no_grad()
@pytest.mark.parametrize("lengths", [[1], [33, 12], [3, 1, 9, 9]])
def test_memory_and_encoder_attention(exported, lengths):
    folder, model = exported
    source_ids, source_length = ragged(lengths, model.config.source_vocab_size)
    memory, attended = model.encoder(source_ids, source_length)
    feeds = {"source_ids": source_ids, "source_length": source_length}
    ours = run(folder, "encoder", **feeds)["memory"]
    for i, n in enumerate(lengths):
        np.testing.assert_allclose(ours[i, :n], memory[i, :n].numpy(), **TOLERANCE)
    for name, weights in run(folder, "encoder_attention", **feeds).items():
        layer = int(name.rpartition("_")[2])
        assert_equal_inside(weights, attended[layer].weights, source_length, source_length)


@torch.no_grad()
@pytest.mark.parametrize("lengths", [[(6, 1)], [(33, 33), (2, 5)], [(1, 2), (9, 3), (4, 11)]])
def test_decoder_and_cross_attention(exported, lengths):
    folder, model = exported
    source_ids, source_length = ragged([s for s, _ in lengths], model.config.source_vocab_size)
    target_ids, target_length = ragged([t for _, t in lengths], model.config.target_vocab_size)
    memory, _ = model.encoder(source_ids, source_length)
    decoded = model.decoder(target_ids, target_length, model.decoder.cross(memory), source_length)
    encoded = run(folder, "encoder", source_ids=source_ids, source_length=source_length)
    ours = run(
        folder,
        "attention",
        decoder_input_ids=target_ids,
        decoder_length=target_length,
        source_length=source_length,
        **cross_of(encoded),
    )
    for layer in range(model.config.num_decoder_layers):
        decoder, cross = ours[f"decoder_attention_{layer}"], ours[f"cross_attention_{layer}"]
        assert_equal_inside(decoder, decoded.decoder_attention[layer], target_length, target_length)
        assert_equal_inside(cross, decoded.cross_attention[layer], target_length, source_length)


@torch.no_grad()
@pytest.mark.parametrize("lengths", [[(6, 1)], [(33, 33), (2, 5)], [(1, 2), (9, 3), (4, 11)]])
def test_scores(exported, lengths):
    folder, model = exported
    source_ids, source_length = ragged([s for s, _ in lengths], model.config.source_vocab_size)
    inputs, input_length = ragged([t for _, t in lengths], model.config.target_vocab_size)
    targets, _ = ragged([t for _, t in lengths], model.config.target_vocab_size, seed=1)
    expected = model(source_ids, source_length, inputs, input_length).log_softmax(-1)
    encoded = run(folder, "encoder", source_ids=source_ids, source_length=source_length)
    ours = run(
        folder,
        "score",
        decoder_input_ids=inputs,
        decoder_length=input_length,
        source_length=source_length,
        target_ids=targets,
        **cross_of(encoded),
    )["token_log_probs"]
    theirs = expected.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    assert_equal_inside(ours, theirs, input_length)


@torch.no_grad()
@pytest.mark.parametrize(
    ("sources", "rows_per_source", "capacity"), [(1, 1, 9), (3, 1, 16), (2, 3, 10), (1, 2, 48)]
)
def test_cached_steps_equal_the_full_forward_pass(exported, sources, rows_per_source, capacity):
    folder, model = exported
    rows, steps, config = sources * rows_per_source, 9, model.config
    source_ids, source_length = ragged([5, 8, 2][:sources], config.source_vocab_size)
    target_ids, target_length = ragged([steps] * rows, config.target_vocab_size)
    expected = model(
        source_ids.repeat_interleave(rows_per_source, 0),
        source_length.repeat_interleave(rows_per_source),
        target_ids,
        target_length,
    ).numpy()
    cross = cross_of(run(folder, "encoder", source_ids=source_ids, source_length=source_length))
    cache = {
        f"self_{part}_{layer}": np.zeros((rows, config.num_heads, capacity, head_dim), np.float32)
        for part, head_dim in (("key", config.d_qk), ("value", config.d_v))
        for layer in range(config.num_decoder_layers)
    }
    vocabulary = config.target_vocab_size
    for position in range(steps):
        out = run(
            folder,
            "step",
            token=target_ids[:, position],
            position=np.full(rows, position),
            source_length=source_length,
            k=[vocabulary],
            **cache,
            **cross,
        )
        cache = {name: out[f"{name}_out"] for name in cache}
        logits = torch.tensor(out["logits"])
        np.testing.assert_allclose(logits.log_softmax(-1), expected[:, position], **TOLERANCE)
        ranked = np.take_along_axis(expected[:, position], out["top_ids"], -1)
        np.testing.assert_allclose(out["top_log_probs"], ranked, **TOLERANCE)
        assert (np.diff(out["top_log_probs"]) <= 0).all()


def test_fp16_graphs_give_what_torch_gives_at_fp32(exported):
    bundle = load_bundle(exported[0])
    session = Session(bundle, Settings(precision="fp16", provider=Provider.cpu))
    check_parity(session, bundle)  # raises, as opening a graph does below, if sizes do not match
    with np.load(bundle.path("parity.npz")) as file:
        torchs = dict(file)
    for compare in (compare_decoding, *COMPARISONS.values()):
        for name, ours, theirs in compare(session, torchs):
            assert ours.dtype == np.float32
            error = np.abs(ours - theirs).max()
            assert error < (0.02 if "attention" in name else 0.1), (name, error)


def test_every_graph_reads_its_weights_from_one_file(exported):
    folder, _ = exported
    for path in (folder / "fp32").glob("*.onnx"):
        graph = onnx.load(path, load_external_data=False).graph
        places = {
            entry.value
            for tensor in graph.initializer
            for entry in tensor.external_data
            if entry.key == "location"
        }
        assert places == {"model.safetensors"}
        assert all(len(tensor.raw_data) <= LARGEST_INLINE for tensor in graph.initializer)


def test_positions_are_saved_with_the_model_and_trained_only_if_learned(exported):
    folder, model = exported
    tables = {f"{side}.embedding.positions" for side in ("encoder", "decoder")}
    with safe_open(folder / "fp32" / "model.safetensors", "pt") as file:
        assert tables <= set(file.keys()) or model.config.positions == Positions.none
    trained = {name for name, _ in model.named_parameters() if "positions" in name}
    assert trained == (tables if model.config.positions == Positions.learned else set())


def test_graphs_hold_no_path_of_the_machine_that_exported(exported):
    folder, _ = exported
    for path in (folder / "fp32").glob("*.onnx"):
        assert b".py" not in path.read_bytes()


def test_the_manifest_describes_every_other_file(exported):
    folder, _ = exported
    listed = json.loads((folder / "bundle.json").read_text())["files"]
    found = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert listed.keys() == found - {"bundle.json"}
