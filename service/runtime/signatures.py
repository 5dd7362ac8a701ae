"""The inputs and outputs of each graph, as docs/bundle.md promises them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnxruntime as ort

from service.bundle.manifest import Config, GraphName
from service.errors import StartupError

Tensors = dict[str, tuple[str | int, ...]]  # name -> its type, then its axes of fixed size
FLOAT, INT = "float", "int64"  # ONNX Runtime's names
K: Tensors = {"k": (INT, 1)}


def check_signature(
    path: Path, session: ort.InferenceSession, graph: GraphName, wanted: tuple[Tensors, Tensors]
) -> None:
    """Raise StartupError naming the inputs or outputs of a graph that are not those wanted."""
    sides = ("inputs", session.get_inputs()), ("outputs", session.get_outputs())
    for (side, found), expected in zip(sides, wanted, strict=True):
        if wrong := dict(reported_tensors(found).items() ^ expected.items()):
            names = ", ".join(sorted(wrong))
            raise StartupError(
                f"{path}: the {graph} graph's {side} {names} are not what the configuration"
                " describes: export the bundle again"
            )


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
    kinds, kept = config.decoder_kinds, (1,) if config.recurrent else ()  # positions of a state
    own: Tensors = {}
    cross: Tensors = {}
    for layer in range(config.num_decoder_layers):
        for part, (count, head_dim) in config.self_parts.items():
            own[f"self_{part}_{layer}"] = (cache_type, count, *kept, head_dim)
        for part, (count, head_dim) in config.cross_parts.items():
            cross[f"cross_{part}_{layer}"] = (cache_type, count, head_dim)
    written = {f"{name}_out": each for name, each in own.items()}
    source: Tensors = {"source_ids": (INT,), "source_length": (INT,)}
    lengths = "decoder_input_ids", "decoder_length", "source_length"
    forced = dict.fromkeys(lengths, (INT,)) | cross
    decoder_gates: Tensors = {"gates": (FLOAT, len(kinds), config.num_decoder_layers, heads)}
    one: Tensors = {"token": (INT, 1), "position": (INT, 1), "source_length": (INT,)}
    several: Tensors = dict.fromkeys(one, (INT,))  # tokens of a row
    step: Tensors = (one if config.recurrent else several) | K | own | cross
    step_of_one: Tensors = one | K | own | cross
    hidden: Tensors = {"hidden": (FLOAT, config.d_model)}
    encoder = weights_of(["encoder_attention"], heads, config.num_encoder_layers)
    encoder_norms = weights_of(["encoder_value_norms"], heads, config.num_encoder_layers)
    weights, norms = ([f"{kind}_{what}" for kind in kinds] for what in ("attention", "value_norms"))
    both = weights_of(weights, heads, config.num_decoder_layers)
    both_norms = weights_of(norms, heads, config.num_decoder_layers)
    encoder_gates: Tensors = {"gates": (FLOAT, config.num_encoder_layers, heads)}
    encoded = {"memory": (FLOAT, config.d_model)} | cross
    scored = forced | {"target_ids": (INT,)}
    log_probs: Tensors = {"token_log_probs": (FLOAT,)}
    best: Tensors = {"top_log_probs": (FLOAT,), "top_ids": (INT,), "logits": (FLOAT, vocab_size)}
    listed: Tensors = {"output_rows": (FLOAT, config.d_model), "output_bias": (FLOAT,)}
    placed: Tensors = {"top_log_probs": (FLOAT,), "top_places": (INT,), "logits": (FLOAT,)}
    tables: dict[GraphName, tuple[Tensors, Tensors]] = {
        "encoder": (source, encoded),
        "step": (step, best | written),
        "draft_step": (step, best | written),
        "attention": (forced, both),
        "encoder_attention": (source, encoder),
        "score": (scored, log_probs),
        "gated_encoder": (source | encoder_gates, encoded | encoder | encoder_norms),
        "gated_step": (step_of_one | decoder_gates, best | written),
        "gated_decoder": (scored | decoder_gates, both | both_norms | log_probs),
        "shortlisted_step": (step_of_one | listed, placed | written),
        "output_rows": ({"ids": (INT,)}, listed),
        "hidden_step": (one | own | cross, hidden | written),
        "output": (hidden | K, best),
    }
    return tables[graph]


def expected_of_list(config: Config, tokens: int) -> tuple[Tensors, Tensors]:
    """Return the inputs and the outputs of the output projection over so many tokens."""
    inputs: Tensors = {"hidden": (FLOAT, config.d_model)} | K
    return inputs, {"top_log_probs": (FLOAT,), "top_places": (INT,), "logits": (FLOAT, tokens)}


def weights_of(kinds: Iterable[str], heads: int, layers: int) -> Tensors:
    """Return weights or value norms of each kind and layer."""
    return {f"{kind}_{layer}": (FLOAT, heads) for kind in kinds for layer in range(layers)}
