"""Tie embeddings and the output projection: one matrix (V, M) under several names."""

from typing import Any, cast

from torch import nn

from model.network.config import Tied, TransformerConfig

SOURCE_WEIGHT = "encoder.embedding.tokens.weight"
TARGET_WEIGHT = "decoder.embedding.tokens.weight"
OUTPUT_WEIGHT = "generator.weight"


def tied_names(config: TransformerConfig) -> dict[str, str]:
    """Return the names that a state dict omits, each with the name that has the same tensor."""
    match config.tied:
        case Tied.no:
            return {}
        case Tied.target:
            return {OUTPUT_WEIGHT: TARGET_WEIGHT}
        case Tied.embeddings:
            return {TARGET_WEIGHT: SOURCE_WEIGHT}
        case Tied.all:
            return {TARGET_WEIGHT: SOURCE_WEIGHT, OUTPUT_WEIGHT: SOURCE_WEIGHT}


def tie(model: nn.Module, names: dict[str, str]) -> None:
    """Let each key of `names` name the parameter of its value. State dicts omit the keys."""

    def omit(_: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
        for name in names:
            del state[prefix + name]

    def restore(_: nn.Module, state: dict[str, Any], prefix: str, *__: Any) -> None:
        shared = {n: state[prefix + s] for n, s in names.items() if prefix + s in state}
        state.update({prefix + name: tensor for name, tensor in shared.items()})

    for name, shared in names.items():
        module = cast("nn.Linear | nn.Embedding", model.get_submodule(name.rpartition(".")[0]))
        module.weight = model.get_parameter(shared)
    model.register_state_dict_post_hook(omit)
    model.register_load_state_dict_pre_hook(restore)
