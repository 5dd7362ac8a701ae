"""torch and ONNX Runtime, on sizes that no trace has seen."""

import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from safetensors import safe_open

from model.data.pairs import pad
from model.export.graphs.exporter import LARGEST_INLINE
from model.network.config import Positions
from service.bundle.manifest import load_bundle
from service.runtime.self_check import COMPARISONS, check_parity, compare_decoding
from service.runtime.session import Session
from service.settings.settings import Provider, Settings

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


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
            token=target_ids[:, position : position + 1],
            position=np.full((rows, 1), position),
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
