"""The words of decoded targets: how probable each is, and the words of the source that it is of."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from service.api.answering.serialize import read_target
from service.attention import pair_tokens, pair_words
from service.formats.json import Document
from service.serving.model import Model
from service.text.tokenizer import Tokens
from service.text.words import Word, find_words
from service.wire import Answer, Entry


def add_words(
    model: Model, answered: Sequence[tuple[Entry, Tokens, Answer]], document: Document
) -> None:
    """Add the words of each hypothesis to an answer of /v1/decode."""
    for (entry, source, answer), result in zip(answered, document["results"], strict=True):
        words = find_words(source)
        for rank, written in enumerate(result["hypotheses"]):
            written["words"] = write_words(model, entry, source, words, answer, rank)


def write_words(
    model: Model,
    entry: Entry,
    source: Tokens,
    source_words: Sequence[Word],
    answer: Answer,
    rank: int,
) -> list[dict[str, Any]]:
    """Return the words of a hypothesis that have generated tokens, each with the log-prob of these
    and with the words that it is aligned to: null if the model has no alignment."""
    hypothesis = answer.hypotheses[rank]
    target, prefix = read_target(model, entry, hypothesis), len(entry.prefix)
    words = [each for each in find_words(target) if each.tokens[-1:] >= [prefix]]
    aligned: list[list[dict[str, Any]] | None] = [None] * len(words)
    if answer.alignment:
        rows = target.tokens[prefix:]
        pairs = pair_tokens(answer.alignment[rank], rows, source.tokens, first=prefix)
        sources: list[list[dict[str, Any]]] = [[] for _ in words]
        for there, here in pair_words(pairs, source_words, words).tolist():
            sources[here].append(place_of(source_words[there]))
        aligned = [*sources]
    written: list[dict[str, Any]] = []
    for word, of in zip(words, aligned, strict=True):
        log_probs = [hypothesis.log_probs[i - prefix] for i in word.tokens if i >= prefix]
        written.append(
            {
                **place_of(word),
                "log_prob": np.float32(sum(log_probs)),
                "mean_log_prob": np.float32(np.mean(log_probs)),
                "source": of,
            }
        )
    return written


def place_of(word: Word) -> dict[str, Any]:
    return {"text": word.text, "start": word.start, "end": word.end}
