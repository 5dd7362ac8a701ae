"""The inputs and outputs of each graph, as docs/bundle.md promises them."""

from collections.abc import Iterable
from typing import Any

import onnxruntime as ort

from service.bundle.manifest import Config, GraphName

Tensors = dict[str, tuple[str | int, ...]]  # name -> its type, then its axes of fixed size
FLOAT, INT = "float", "int64"  # ONNX Runtime's names


def describe_mismatch(
    session: ort.InferenceSession, graph: GraphName, config: Config, cache_type: str
) -> str | None:
    """Return which inputs or outputs of a graph contradict the configuration; None if none do."""
    sides = ("inputs", session.get_inputs()), ("outputs", session.get_outputs())
    wanted = expected_tensors(graph, config, cache_type)
    for (side, found), expected in zip(sides, wanted, strict=True):
        if wrong := dict(reported_tensors(found).items() ^ expected.items()):
            names = ", ".join(sorted(wrong))
            return f"the {graph} graph's {side} {names} are not what the configuration describes"
    return None


def reported_tensors(arguments: Iterable[Any]) -> Tensors:
    return {
        each.name: (
            each.type.removeprefix("tensor(").removesuffix(")"),
            *(axis for axis in each.shape if isinstance(axis, int)),
        )
        for each in arguments
    }


def expected_tensors(graph: GraphName, config: Config, cache_type: str) -> tuple[Tensors, Tensors]:
    """Return the inputs and the outputs of a graph. Keys and values have the type `cache_type`."""
    heads, vocab_size = config.num_heads, config.target_vocab_size
    keys_values: Tensors = {}
    for layer in range(config.num_decoder_layers):
        keys_values[f"key_{layer}"] = (cache_type, heads, config.d_qk)
        keys_values[f"value_{layer}"] = (cache_type, heads, config.d_v)
    cross = {f"cross_{name}": each for name, each in keys_values.items()}
    own = {f"self_{name}": each for name, each in keys_values.items()}
    written = {f"{name}_out": each for name, each in own.items()}
    source: Tensors = {"source_ids": (INT,), "source_length": (INT,)}
    lengths = "decoder_input_ids", "decoder_length", "source_length"
    forced = dict.fromkeys(lengths, (INT,)) | cross
    token = dict.fromkeys(("token", "position", "source_length"), (INT,))
    best: Tensors = {"top_log_probs": (FLOAT,), "top_ids": (INT,), "logits": (FLOAT, vocab_size)}
    match graph:
        case "encoder":
            return source, {"memory": (FLOAT, config.d_model)} | cross
        case "step":
            return token | {"k": (INT, 1)} | own | cross, best | written
        case "attention":
            kinds = "decoder_attention", "cross_attention"
            return forced, weights_of(kinds, heads, config.num_decoder_layers)
        case "encoder_attention":
            return source, weights_of([graph], heads, config.num_encoder_layers)
        case "score":
            return forced | {"target_ids": (INT,)}, {"token_log_probs": (FLOAT,)}


def weights_of(kinds: Iterable[str], heads: int, layers: int) -> Tensors:
    """Return attention weights of each kind and layer."""
    return {f"{kind}_{layer}": (FLOAT, heads) for kind in kinds for layer in range(layers)}
