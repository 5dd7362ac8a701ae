"""Write a bundle (docs/bundle.md): all files that the service needs, without torch."""

import json
import re
from enum import StrEnum
from pathlib import Path

import numpy as np
import onnx
import torch
from safetensors.torch import save_file

from model.checkpoint import TOKENIZERS, WEIGHTS, TrainedModel
from model.export.calibrate import calibrate
from model.export.graphs import export_graphs, save_graphs
from model.export.manifest import Card, Precision, describe
from model.export.parity import parity
from model.export.quantize import Scales, quantize
from model.export.weights import share_weights, store_constants
from model.export.work_folder import replacement
from model.network.config import InputError
from model.network.transformer import Transformer

NAME = "[A-Za-z0-9][A-Za-z0-9._-]*"


class WeightType(StrEnum):
    fp16 = "fp16"
    fp32 = "fp32"


def write_bundle(
    trained: TrainedModel,
    card: Card,
    weight_type: WeightType,
    bundle: Path,
    precision: Precision = Precision.fp32,
) -> None:
    """Write a bundle, and replace an existing one only once the new one is whole.

    Raises InputError if `bundle` is something else, or if the model cannot be exported.
    """
    if bundle.exists() and not (bundle / "bundle.json").is_file():
        raise InputError(f"{bundle} exists and is not a bundle: name another folder")
    if not re.fullmatch(NAME, card.name):
        raise InputError(
            f"name {card.name!r} must begin with a letter or digit and have only letters, digits,"
            " dots, underscores and hyphens"
        )
    try:
        with replacement(bundle) as new:
            write_model(trained.transformer, weight_type, precision, new)
            trained.source_tokenizer.save(str(new / TOKENIZERS[0]))
            trained.target_tokenizer.save(str(new / TOKENIZERS[1]))
            write_texts(trained, card, new)
    except OSError as error:
        raise InputError(
            f"{bundle} cannot be written: {error.strerror or error}; an older bundle stays as it"
            " was: make room, or name another folder"
        ) from error


def write_model(
    transformer: Transformer, weight_type: WeightType, precision: Precision, bundle: Path
) -> None:
    """Write weights, parity.npz and graphs.

    With fp16 the model is rounded first: torch's outputs, the graphs and the int8 scales then
    all belong to the rounded model.
    """
    (bundle / "fp32").mkdir()
    weights = bundle / "fp32" / WEIGHTS
    transformer = store_weights(transformer, weight_type, weights)
    # Before the graphs: an input that cannot be exported is refused in seconds, not minutes.
    np.savez_compressed(bundle / "parity.npz", allow_pickle=False, **parity(transformer))
    scales = calibrate(transformer) if precision is Precision.int8 else None
    graphs = export_graphs(transformer)
    if scales is not None:
        write_int8(graphs, scales, bundle / "int8")
    for proto in graphs.values():
        share_weights(proto.graph, transformer.state_dict(), weights)
    save_graphs(graphs, bundle / "fp32")


def store_weights(model: Transformer, weight_type: WeightType, path: Path) -> Transformer:
    """Write the weights and return the model as it is read back from them, rounded."""
    dtype = torch.float16 if weight_type is WeightType.fp16 else torch.float32
    state = {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}
    save_file(state, path)
    path.chmod(0o644)  # safetensors makes files that only their owner can read
    stored = Transformer(model.config).eval()
    stored.load_state_dict(state)
    return stored


def write_int8(graphs: dict[str, onnx.ModelProto], scales: Scales, folder: Path) -> None:
    """Quantise copies of `graphs`, which hold their constants, and write them with the weights."""
    folder.mkdir()
    graphs = {name: onnx.ModelProto.FromString(p.SerializeToString()) for name, p in graphs.items()}
    for proto in graphs.values():
        quantize(proto, scales)
    store_constants([proto.graph for proto in graphs.values()], folder / WEIGHTS)
    (folder / WEIGHTS).chmod(0o644)
    save_graphs(graphs, folder)


def write_texts(trained: TrainedModel, card: Card, bundle: Path) -> None:
    """Write NOTICE, MODEL_CARD.md and, last of all files because it lists them, bundle.json."""
    (bundle / "NOTICE").write_text(card.notice, encoding="utf-8")
    if card.model_card:
        (bundle / "MODEL_CARD.md").write_text(card.model_card, encoding="utf-8")
    manifest = json.dumps(describe(trained, card, bundle), indent=2, ensure_ascii=False)
    (bundle / "bundle.json").write_text(manifest + "\n", encoding="utf-8")
