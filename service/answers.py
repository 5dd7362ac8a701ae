"""What the engine answered, in the shapes of service.schemas."""

from typing import Any

import numpy as np

from service.attention import Block, Kind, Selection
from service.cache import FloatArray
from service.entry import Answer
from service.search import Hypothesis
from service.served import Model
from service.tokenizer import Token, Tokens


def write_hypotheses(
    model: Model, selection: Selection, source: Tokens, answer: Answer
) -> list[dict[str, Any]]:
    attention = answer.attention or [{} for _ in answer.hypotheses]
    pairs = zip(answer.hypotheses, attention, strict=True)
    return [write_hypothesis(model, selection, source, *pair) for pair in pairs]


def write_hypothesis(
    model: Model,
    selection: Selection,
    source: Tokens,
    hypothesis: Hypothesis,
    attention: dict[Kind, FloatArray],
) -> dict[str, Any]:
    target = model.target.decode(hypothesis.token_ids)
    written: dict[str, Any] = {
        "text": target.text,
        "tokens": [token.text for token in target.tokens],
        "token_ids": hypothesis.token_ids,
        "score": np.float32(hypothesis.score),
        "log_probs": np.array(hypothesis.log_probs, np.float32),
        "finish_reason": hypothesis.finish_reason,
    }
    if selection.layers:
        written["attention"] = write_blocks(model, selection, source, target, attention)
    return written


def write_blocks(
    model: Model,
    selection: Selection,
    source: Tokens,
    target: Tokens,
    attention: dict[Kind, FloatArray],
) -> list[Block]:
    start = model.target.decode(model.engine.bundle.manifest.decoder_start_ids)
    axes: dict[Kind, tuple[list[Token], list[Token]]] = {
        "encoder": (source.tokens, source.tokens),
        "decoder": (target.tokens, [*start.tokens, *target.tokens[:-1]]),
        "cross": (target.tokens, source.tokens),
    }
    blocks: list[Block] = []
    for kind, weights in attention.items():
        rows, columns = axes[kind]
        blocks.append(selection.block(kind, weights, rows, columns))
    return blocks


def pool(memory: FloatArray, pooling: str, normalize: bool) -> FloatArray:
    """(S, M) -> (M,), or (S, M) if pooling is none."""
    vectors = {
        "none": lambda: memory,
        "mean": lambda: memory.mean(axis=0),
        "max": lambda: memory.max(axis=0),
        "first": lambda: memory[0],
        "last": lambda: memory[-1],
    }[pooling]()
    if normalize:
        vectors = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.ascontiguousarray(vectors)
