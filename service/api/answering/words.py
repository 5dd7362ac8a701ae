"""The words of decoded targets: how probable each is, how much it depends on the source, and the
words of the source that it is of."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from service.api.answering.serialize import read_target
from service.api.reading.call import Call
from service.api.reading.faults import Faults
from service.api.reading.texts import Sources
from service.attention import pair_tokens, pair_words, write_place
from service.formats.json import Document
from service.occlusion import Parts, occlude, source_shares
from service.serving.model import Model
from service.text.tokens import Tokens
from service.text.words import WordSpan, find_words
from service.wire import Answer, Entry


async def add_occluded(
    call: Call,
    model: Model,
    entries: Sequence[Entry],
    sources: Sources,
    faults: Faults,
    answers: Sequence[Answer],
) -> None:
    """Score every hypothesis again, given its source and given it with all tokens replaced, and add
    the log-probs to its answer."""
    make = partial(make_occluded, model.replacement, entries, sources, answers)
    rows, results = await call.compute(make, sum(map(len, sources.tokens)))
    scored = await call.submit_in_parts(model, rows, faults, results)
    call.note([*answers, *scored])
    found = iter(zip(scored[::2], scored[1::2], strict=True))
    for entry, answer in zip(entries, answers, strict=True):
        for _ in targets_of(entry, answer):
            log_probs = [each.log_probs for each in next(found) if each.log_probs is not None]
            if len(log_probs) == 2:  # else the result has failed
                answer.occluded = [*answer.occluded, np.stack(log_probs)]


def make_occluded(
    replacement: int, entries: Sequence[Entry], sources: Sources, answers: Sequence[Answer]
) -> tuple[list[Entry], list[int]]:
    """Return two entries for each hypothesis, and the index of the result of each of them."""
    rows: list[Entry] = []
    results: list[int] = []
    every = zip(entries, sources.tokens, sources.results, answers, strict=True)
    for entry, source, result, answer in every:
        both = occlude(source, Parts([], []), replacement)  # (2, S)
        for ids in targets_of(entry, answer):
            rows += [
                Entry(
                    row, target_ids=ids, scores=True, language=entry.language, ablated=entry.ablated
                )
                for row in both
            ]
            results += [result] * len(both)
    return rows, results


def targets_of(entry: Entry, answer: Answer) -> list[list[int]]:
    return [[*entry.prefix, *each.token_ids] for each in answer.hypotheses]


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
    source_words: Sequence[WordSpan],
    answer: Answer,
    rank: int,
) -> list[dict[str, Any]]:
    """Return the words of a hypothesis that have generated tokens, each with the log-prob and the
    entropy of these and with the words that it is aligned to: null if the model has no alignment.
    Each has its source share if the hypotheses were scored for it."""
    hypothesis = answer.hypotheses[rank]
    target, prefix = read_target(model, entry, hypothesis), len(entry.prefix)
    words = [each for each in find_words(target) if each.tokens[-1:] >= [prefix]]
    aligned: list[list[dict[str, Any]] | None] = [None] * len(words)
    if answer.alignment:
        rows = target.tokens[prefix:]
        weights = answer.alignment[rank][prefix:]
        pairs = pair_tokens(weights, rows, source.tokens, first=prefix)
        sources: list[list[dict[str, Any]]] = [[] for _ in words]
        for there, here in pair_words(pairs, source_words, words).tolist():
            sources[here].append(write_place(source_words[there]))
        aligned = [*sources]
    written: list[dict[str, Any]] = []
    for word, of in zip(words, aligned, strict=True):
        tokens = [i for i in word.tokens if i >= prefix]
        log_probs, entropies = (
            [values[i - prefix] for i in tokens]
            for values in (hypothesis.log_probs, hypothesis.entropies)
        )
        trust = {
            "log_prob": np.float32(sum(log_probs)),
            "mean_log_prob": np.float32(np.mean(log_probs)),
            "entropy": np.float32(np.mean(entropies)),
        }
        if answer.occluded:
            log_probs = answer.occluded[rank][:, tokens].sum(1, keepdims=True)  # (2, 1)
            trust["source_share"] = source_shares(log_probs)[0]
        written.append({**write_place(word), **trust, "source": of})
    return written
