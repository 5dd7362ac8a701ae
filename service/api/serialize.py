"""What the engine answered, in the shapes of service.schemas."""

from collections.abc import Sequence, Sized
from typing import Any

import numpy as np

from service.arrays import FloatArray
from service.attention import AttentionKind
from service.engine.messages import Answer, Entry
from service.engine.model import Model
from service.search.protocol import Alternatives, Hypothesis
from service.tokenizer import Token, Tokens


def write_hypotheses(
    model: Model, entry: Entry, source: Tokens, answer: Answer
) -> list[dict[str, Any]]:
    attention = answer.attention or [{} for _ in answer.hypotheses]
    pairs = zip(answer.hypotheses, attention, strict=True)
    return [write_hypothesis(model, entry, source, *pair) for pair in pairs]


def write_hypothesis(
    model: Model,
    entry: Entry,
    source: Tokens,
    hypothesis: Hypothesis,
    attention: dict[AttentionKind, FloatArray],
) -> dict[str, Any]:
    target, generated = read_target(model, entry, hypothesis)
    written: dict[str, Any] = {
        "text": target.text,
        "tokens": [token.text for token in generated],
        "token_ids": hypothesis.token_ids,
        "score": np.float32(hypothesis.score),
        "log_probs": np.array(hypothesis.log_probs, np.float32),
        "finish_reason": hypothesis.finish_reason,
    }
    if hypothesis.top_log_probs:
        written["top_log_probs"] = [alternatives(model, one) for one in hypothesis.top_log_probs]
    if entry.selection.layers:
        written["attention"] = write_blocks(model, entry, source, target, attention)
    return written


def alternatives(model: Model, top_log_probs: Alternatives) -> list[dict[str, Any]]:
    return [
        {"token": model.target.name(i), "id": i, "log_prob": np.float32(log_prob)}
        for i, log_prob in top_log_probs
    ]


def read_target(model: Model, entry: Entry, hypothesis: Hypothesis) -> tuple[Tokens, list[Token]]:
    """The whole target, and the tokens of it that were generated."""
    target = model.target.decode([*entry.prefix, *hypothesis.token_ids])
    return target, target.tokens[len(entry.prefix) :]


def write_blocks(
    model: Model,
    entry: Entry,
    source: Tokens,
    target: Tokens,
    attention: dict[AttentionKind, FloatArray],
) -> list[dict[str, Any]]:
    start = model.target.decode(model.engine.bundle.manifest.decoder_start_ids)
    forced = len(entry.prefix)
    generated = target.tokens[forced:]
    read = [*start.tokens, *target.tokens[:forced], *generated[:-1]]
    axes: dict[AttentionKind, tuple[list[Token], list[Token]]] = {
        "encoder": (source.tokens, source.tokens),
        "decoder": (generated, read),
        "cross": (generated, source.tokens),
    }
    selection = entry.selection
    return [
        selection.block(kind, attention[kind], *axes[kind], forced) for kind in selection.layers
    ]


def write_tokens(text: Tokens) -> dict[str, Any]:
    return {
        "tokens": [token.text for token in text.tokens],
        "token_ids": text.ids,
        "offsets": [
            None if token.start is None else [token.start, token.end] for token in text.tokens
        ],
    }


def usage_of(sources: Sequence[Sized], targets: Sequence[Sized]) -> dict[str, int]:
    """Tokens in and out."""
    return {"source_tokens": sum(map(len, sources)), "target_tokens": sum(map(len, targets))}


def write_score(target: Tokens, answer: Answer) -> dict[str, Any]:
    """Perplexity is exp(-mean)."""
    assert answer.log_probs is not None
    log_probs = answer.log_probs.astype(np.float64)
    mean = log_probs.mean()
    return {
        "tokens": [token.text for token in target.tokens],
        "log_probs": answer.log_probs,
        "sum": np.float32(log_probs.sum()),
        "mean": np.float32(mean),
        "perplexity": float(np.exp(-mean)),
    }
