"""Decode a source that still grows: say which generated tokens no longer source can change.

AlignAtt: Papi, Turchi and Negri, "AlignAtt: Using Attention-based Audio-Translation Alignments as a
Guide for Simultaneous Speech Translation" (2023), with the alignment that the bundle names.
"""

from collections.abc import Sequence
from typing import Any

from service.api.answering.serialize import read_target
from service.arrays import FloatArray
from service.attention import pair_tokens
from service.formats.json import Document
from service.search.protocol import Hypothesis
from service.serving.model import Model
from service.text.tokens import Tokens
from service.wire import Answer, Entry


def add_committed(
    model: Model, hold: int, answered: Sequence[tuple[Entry, Tokens, Answer]], document: Document
) -> None:
    """Add to each hypothesis of an answer of /v1/decode what is committed, and what is not."""
    for (entry, source, answer), result in zip(answered, document["results"], strict=True):
        aligned = zip(answer.hypotheses, answer.alignment, result["hypotheses"], strict=True)
        for hypothesis, weights, written in aligned:
            written |= commit(model, entry, hypothesis, source, weights, hold)


def commit(
    model: Model,
    entry: Entry,
    hypothesis: Hypothesis,
    source: Tokens,
    weights: FloatArray,
    hold: int,
) -> dict[str, Any]:
    """Return the fields `committed` and `tentative` of a hypothesis, aligned by weights (T, S)."""
    target, prefix = read_target(model, entry, hypothesis), len(entry.prefix)
    ends = model.manifest.eos_ids
    count = count_committed(ends, target, prefix, source, weights[prefix:], hold)
    ids = [*entry.prefix, *hypothesis.token_ids[:count]]
    text = model.target.decode(ids).text
    # The last tokens may hold half a character, or white space that only stands between words.
    while not target.text.startswith(text):
        ids.pop()
        text = model.target.decode(ids).text
    return {"committed": {"text": text, "token_ids": ids}, "tentative": target.text[len(text) :]}


def count_committed(
    eos_ids: Sequence[int],
    target: Tokens,
    prefix: int,
    source: Tokens,
    weights: FloatArray,
    hold: int,
) -> int:
    """Return how many generated tokens, which follow `prefix` tokens in the target, come before the
    first one that is aligned to one of the last `hold` tokens of the source, or ends the target.
    Special tokens of the source do not count."""
    generated = target.tokens[prefix:]
    spoken = [i for i, token in enumerate(source.tokens) if token.start is not None]
    held = {*spoken[-hold:]}
    if held == {*spoken}:
        return 0
    aligned = pair_tokens(weights, generated, source.tokens).tolist()
    late = [step for token, step in aligned if token in held]
    ends = [step for step, token in enumerate(generated) if token.id in eos_ids]
    return min([*late, *ends], default=len(generated))
