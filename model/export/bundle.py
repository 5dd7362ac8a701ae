"""Write a bundle (docs/bundle.md): all files that the service needs, without torch."""

import json
import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import torch

from model.checkpoint import TOKENIZERS, WEIGHTS, TrainedModel
from model.export.checks.parity import parity
from model.export.checks.samples import IdArray, IdPairs, samples
from model.export.files.manifest import (
    LIST_GRAPH,
    SHORTLISTS,
    TARGET_LISTS,
    Card,
    Precision,
    check_examples,
    check_files,
    check_limits,
    describe,
    usage_of,
)
from model.export.files.tensor_file import converted, refer_to, write_tensors
from model.export.files.weights import (
    WeightType,
    exact_sources,
    int8_names,
    int8_sources,
)
from model.export.files.work_folder import replacement
from model.export.graphs.exporter import save_graph
from model.export.graphs.listed import LISTED, OUTPUT, keep_tokens
from model.export.graphs.shortlisted import SHORTLISTED
from model.export.graphs.wrappers import export_graphs
from model.export.precision.calibrate import Calibration, calibrate
from model.export.precision.choose import ON_RANDOM_IDS, ON_TEXTS
from model.export.precision.half import halve
from model.export.precision.half_range import check_half_range
from model.export.precision.quantize import quantize
from model.network.config import InputError
from model.network.transformer import Transformer
from model.usage import Shortlists, Usage

NAME = "[A-Za-z0-9][A-Za-z0-9._-]*"
Prove = Callable[[Path, str], tuple[TrainedModel, Card]]
SaveGraph = Callable[[str, onnx.ModelProto, IdArray | None], None]  # its name; tokens that it keeps
Progress = Callable[[str], None]  # called with the name of each stage as it starts


def write_bundle(
    trained: TrainedModel,
    card: Card,
    weight_type: WeightType,
    bundle: Path,
    precision: Precision = Precision.fp32,
    prove: Prove | None = None,
    progress: Progress = lambda _: None,
) -> None:
    """Write a bundle, and replace an existing one only once the new one is whole.

    Weights that `weight_type` holds exactly are stored so, others at fp32. `prove` sees the folder
    with its graphs, and what `write_model` returns, and gives the model and the card that the
    bundle describes.
    Raise InputError if `bundle` is something else, if it would hold what the service refuses, or
    if the model cannot be exported.
    """
    check_target(bundle, card.name)
    check_examples(card.examples)
    check_limits(trained)
    try:
        with replacement(bundle) as new:
            summary = write_model(trained, weight_type, precision, new, progress)
            tokenizers = trained.source_tokenizer, trained.target_tokenizer
            for tokenizer, name in zip(tokenizers, TOKENIZERS, strict=True):
                # its own save raises no OSError when the disk is full
                (new / name).write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
            if prove is not None:
                trained, card = prove(new, summary)
            write_texts(trained, card, new)
            write_alignment(trained, new, progress)
            check_files(new)
    except OSError as error:
        raise InputError(
            f"{bundle} cannot be written: {error.strerror or error}; an older bundle stays as it"
            " was: make room, or name another folder"
        ) from error


def check_target(bundle: Path, name: str) -> None:
    """Raise InputError if `bundle` exists and is not a bundle, or if `name` is invalid."""
    if bundle.exists() and not (bundle / "bundle.json").is_file():
        raise InputError(f"{bundle} exists and is not a bundle: name another folder")
    if not re.fullmatch(NAME, name):
        origin = ", which the folder's name gives," if name == bundle.name else ""
        raise InputError(
            f"name {name!r}{origin} must begin with a letter or digit and have only letters,"
            " digits, dots, underscores and hyphens: give another --name"
        )


def write_model(
    trained: TrainedModel,
    weight_type: WeightType,
    precision: Precision,
    bundle: Path,
    progress: Progress,
) -> str:
    """Write weights, parity.npz and graphs, one graph at a time. Return what int8 changes."""
    model, summary = trained.transformer, ""
    progress("computing torch's results for the self-check")
    # Before the graphs: an input that cannot be exported is refused in seconds, not minutes.
    np.savez_compressed(bundle / "parity.npz", allow_pickle=False, **parity(model))
    rounds = precision is not Precision.fp32
    pairs = trained.pairs or (samples(model) if rounds else ())
    writers: list[SaveGraph] = []
    if Precision.fp32 in precision.folders:
        progress(f"writing the weights at {weight_type}")
        writers.append(write_fp32(model, weight_type, bundle / "fp32"))
    if Precision.fp16 in precision.folders:
        progress("writing the weights of the fp16 graphs")
        writers.append(write_fp16(model, bundle / "fp16", pairs))
    if Precision.int8 in precision.folders:
        progress("calibrating int8, and writing its weights")
        tolerance = ON_TEXTS if trained.pairs else ON_RANDOM_IDS
        found = calibrate(model, pairs, tolerance)
        summary = found.summary
        progress(summary)
        writers.append(write_int8(model, bundle / "int8", found))
    names = " and ".join(precision.folders)
    usage = usage_of(trained)
    write_graphs(model, usage, writers, lambda name: progress(f"exporting {name}, at {names}"))
    if usage.shortlists is not None:
        write_shortlists(usage.shortlists, bundle)
    if usage.target_lists:
        arrays = {code: tokens.astype(np.int32) for code, tokens in usage.target_lists.items()}
        np.savez_compressed(bundle / TARGET_LISTS, allow_pickle=False, **arrays)
    return summary


def write_graphs(
    model: Transformer, usage: Usage, writers: Sequence[SaveGraph], progress: Progress
) -> None:
    """Write each graph with all writers, and the output projection for each list of tokens too."""
    others = (SHORTLISTED if usage.shortlists else {}) | (LISTED if usage.target_lists else {})
    for name, proto in export_graphs(model, progress, others):
        listed = usage.target_lists if name == OUTPUT else {}
        for save in writers:
            save(name, deepcopy(proto), None)
            for code, tokens in listed.items():
                save(f"{LIST_GRAPH}{code}", deepcopy(proto), tokens)


def write_shortlists(shortlists: Shortlists, bundle: Path) -> None:
    arrays = {
        "offsets": shortlists.offsets,
        "tokens": shortlists.tokens.astype(np.int32),
        "always": shortlists.always.astype(np.int32),
    }
    np.savez_compressed(bundle / SHORTLISTS, allow_pickle=False, **arrays)


def write_fp32(model: Transformer, weight_type: WeightType, folder: Path) -> SaveGraph:
    """Write the weights, and return a function that saves a graph next to them."""
    folder.mkdir()
    sources = exact_sources(model.state_dict(), weight_type.dtype)
    stored = write_tensors(folder / WEIGHTS, sources)

    def save(name: str, proto: onnx.ModelProto, tokens: IdArray | None) -> None:
        if tokens is not None:
            keep_tokens(proto.graph, tokens)
        refer_to(proto.graph, WEIGHTS, stored)
        save_graph(proto, folder / f"{name}.onnx")

    return save


def write_fp16(model: Transformer, folder: Path, pairs: IdPairs) -> SaveGraph:
    """Write the weights as float16, and return a function that halves a graph and saves it next to
    them. Raise InputError if the model's numbers exceed float16."""
    check_half_range(model, pairs)
    folder.mkdir()
    sources = {name: converted(each, torch.float16) for name, each in model.state_dict().items()}
    stored = write_tensors(folder / WEIGHTS, sources)

    def save(name: str, proto: onnx.ModelProto, tokens: IdArray | None) -> None:
        if tokens is not None or name in SHORTLISTED | LISTED:  # a GPU scores all tokens
            return
        halve(proto, {each for each, found in stored.items() if found.dtype is torch.float16})
        refer_to(proto.graph, WEIGHTS, stored, cast=False)
        save_graph(proto, folder / f"{name}.onnx")

    return save


def write_int8(model: Transformer, folder: Path, found: Calibration) -> SaveGraph:
    """Write the weights, and return a function that quantises a graph and saves it next to them."""
    tensors = model.state_dict()
    names = int8_names(model, found.fp32)
    biases = {name for name, tensor in tensors.items() if tensor.dim() == 1}
    biases -= {f"{layer}.bias" for layer in found.fp32}
    folder.mkdir()
    stored = write_tensors(folder / WEIGHTS, int8_sources(tensors, names, found.by_gptq))

    def save(name: str, proto: onnx.ModelProto, tokens: IdArray | None) -> None:
        quantize(proto, found.scales, names, biases, found.wide)
        if tokens is not None:
            keep_tokens(proto.graph, tokens)
        refer_to(proto.graph, WEIGHTS, stored)
        save_graph(proto, folder / f"{name}.onnx")

    return save


def write_alignment(trained: TrainedModel, bundle: Path, progress: Progress) -> None:
    """Find which attention aligns, on the sources of the pairs if there are any. If training
    guided one, it is that one, unless that is not sure and another agrees more often."""
    if find_spec("onnxruntime") is None:
        progress("onnxruntime is not installed: run `heed align` to find which attention aligns")
        return
    from model.export.alignment.find import align

    sources = [source for source, _ in trained.pairs]
    if (usage := trained.usage) is None:
        align(bundle, sources, progress=progress)
    else:
        align(bundle, sources, (), progress, usage.guided, usage.surely_guided)


def write_texts(trained: TrainedModel, card: Card, bundle: Path) -> None:
    """Write NOTICE, MODEL_CARD.md and, last of all files because it lists them, bundle.json."""
    if card.notice:
        (bundle / "NOTICE").write_text(card.notice, encoding="utf-8")
    if card.model_card:
        (bundle / "MODEL_CARD.md").write_text(card.model_card, encoding="utf-8")
    manifest = json.dumps(describe(trained, card, bundle), indent=2, ensure_ascii=False)
    (bundle / "bundle.json").write_text(manifest + "\n", encoding="utf-8")
