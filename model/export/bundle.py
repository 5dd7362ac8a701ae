"""Write a bundle (docs/bundle.md): all that the service needs of a model, and nothing of torch."""

import hashlib
import json
import re
import shutil
import tempfile
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from safetensors.torch import save_file

from model.checkpoint import TOKENIZERS, WEIGHTS, TrainedModel
from model.data.tokenizers import UNK
from model.export.calibrate import calibrate
from model.export.graphs import export_graphs, save_graphs
from model.export.parity import parity
from model.export.quantize import Scales, quantize
from model.export.weights import share_weights, store_constants
from model.network.config import InputError
from model.network.transformer import Transformer

FORMAT_VERSION = 1
NAME = "[A-Za-z0-9][A-Za-z0-9._-]*"


class Precision(StrEnum):
    """The arithmetic of a bundle's graphs; int8 comes beside fp32."""

    fp32 = "fp32"
    int8 = "int8"


class WeightType(StrEnum):
    fp16 = "fp16"
    fp32 = "fp32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a reader must know before using the model. `notice` is carried along as NOTICE, what
    there is of `model_card` as MODEL_CARD.md."""

    name: str
    task: str
    licence: str
    attribution: str
    notice: str
    model_card: str = ""


def write_bundle(
    trained: TrainedModel,
    card: Card,
    weight_type: WeightType,
    bundle: Path,
    precision: Precision = Precision.fp32,
) -> None:
    """Replaces `bundle` only once the new one is whole. Raises InputError if it is something else.

    With fp16 the model is rounded first: torch, the graphs and parity.npz all use the rounded one.
    """
    if bundle.exists() and not (bundle / "bundle.json").is_file():
        raise InputError(f"{bundle} exists and is no bundle: name another folder")
    if not re.fullmatch(NAME, card.name):
        raise InputError(f"name {card.name!r} must match {NAME}")
    bundle.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{bundle.name}-", dir=bundle.parent))
    try:
        build = work / "new"
        (build / "fp32").mkdir(parents=True)
        transformer = store_weights(trained.transformer, weight_type, build / "fp32" / WEIGHTS)
        graphs = export_graphs(transformer)
        if precision is Precision.int8:
            (build / "int8").mkdir()
            write_int8(graphs, calibrate(transformer), build / "int8")
        for proto in graphs.values():
            share_weights(proto.graph, transformer.state_dict(), build / "fp32" / WEIGHTS)
        save_graphs(graphs, build / "fp32")
        trained.source_tokenizer.save(str(build / TOKENIZERS[0]))
        trained.target_tokenizer.save(str(build / TOKENIZERS[1]))
        np.savez_compressed(build / "parity.npz", allow_pickle=False, **parity(transformer))
        (build / "NOTICE").write_text(card.notice, encoding="utf-8")
        if card.model_card:
            (build / "MODEL_CARD.md").write_text(card.model_card, encoding="utf-8")
        manifest = json.dumps(describe(trained, card, build), indent=2, ensure_ascii=False)
        (build / "bundle.json").write_text(manifest + "\n", encoding="utf-8")
        swap(build, bundle, work / "old")
    finally:
        shutil.rmtree(work)


def write_int8(graphs: dict[str, onnx.ModelProto], scales: Scales, folder: Path) -> None:
    graphs = {name: onnx.ModelProto.FromString(p.SerializeToString()) for name, p in graphs.items()}
    for proto in graphs.values():
        quantize(proto, scales)
    store_constants([proto.graph for proto in graphs.values()], folder / WEIGHTS)
    (folder / WEIGHTS).chmod(0o644)
    save_graphs(graphs, folder)


def swap(new: Path, bundle: Path, old: Path) -> None:
    """Put `new` in the bundle's place; where that fails, the bundle stays."""
    if bundle.exists():
        bundle.rename(old)
    try:
        new.rename(bundle)
    except OSError:
        if old.exists():
            old.rename(bundle)
        raise


def store_weights(model: Transformer, weight_type: WeightType, path: Path) -> Transformer:
    """Writes the weights and returns the model as it comes back from them, rounded."""
    dtype = torch.float16 if weight_type is WeightType.fp16 else torch.float32
    state = {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}
    save_file(state, path)
    path.chmod(0o644)  # safetensors writes for its owner alone
    stored = Transformer(model.config).eval()
    stored.load_state_dict(state)
    return stored


def describe(trained: TrainedModel, card: Card, build: Path) -> dict[str, Any]:
    config = trained.transformer.config
    files = sorted(path for path in build.rglob("*") if path.is_file())
    return {
        "format_version": FORMAT_VERSION,
        "name": card.name,
        "task": card.task,
        "licence": card.licence,
        "attribution": card.attribution,
        "config": asdict(config),
        "limits": {
            "max_source_length": config.max_source_length,
            "max_target_length": config.max_target_length,
        },
        "decoding": {"max_new_tokens": config.max_target_length},
        "pad_id": config.pad_id,
        "eos_id": config.eos_id,
        "unknown_id": trained.source_tokenizer.token_to_id(UNK),
        "source_prefix_ids": [],
        "source_suffix_ids": [],
        "decoder_start_ids": [config.bos_id],
        "tokenizers": dict(zip(("source", "target"), TOKENIZERS, strict=True)),
        "precisions": {
            precision: {p.stem: f"{precision}/{p.name}" for p in sorted(graphs)}
            for precision in Precision
            if (graphs := list(build.glob(f"{precision}/*.onnx")))
        },
        "files": {
            path.relative_to(build).as_posix(): {
                "size": path.stat().st_size,
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            }
            for path in files
        },
    }
