"""Write the engine's answers as the documents of service.api.answering.responses.

Numbers stay NumPy's float32, which are written with as few digits as they need.
"""

import math
import sys
from collections.abc import Collection, Container, Iterable, Sequence, Sized
from typing import Any

import numpy as np
import orjson

from service.api.answering.aligned import Aligned
from service.api.reading.texts import Sources, Text
from service.attention import AttentionKind, align_texts
from service.formats.json import Document
from service.search.protocol import DEAD, Alternatives, Hypothesis
from service.serving.model import Model
from service.text.markup.document import Translated
from service.text.sentences import Span, replace
from service.text.tokens import Token, Tokens
from service.wire import Answer, Entry

LARGEST_EXPONENT = math.log(sys.float_info.max)


def write_decoded(model: Model, answered: Sequence[tuple[Entry, Tokens, Answer]]) -> Document:
    """Return the answer of /v1/decode, given each entry with its source and its answer."""
    results = [
        {
            "hypotheses": [
                write_hypothesis(model, entry, source, answer, rank)
                for rank in range(len(answer.hypotheses))
            ],
            "source_tokens": len(source),
        }
        for entry, source, answer in answered
    ]
    sources = [source for _, source, _ in answered]
    decoded = [each.token_ids for *_, answer in answered for each in answer.hypotheses]
    return {"model": model.name, "results": results, "usage": usage_of(sources, decoded)}


def write_hypothesis(
    model: Model, entry: Entry, source: Tokens, answer: Answer, rank: int
) -> dict[str, Any]:
    hypothesis = answer.hypotheses[rank]
    target = read_target(model, entry, hypothesis)
    written: dict[str, Any] = {
        "text": target.text,
        "tokens": [*map(model.target.name, hypothesis.token_ids)],
        "token_ids": hypothesis.token_ids,
        "score": np.float32(hypothesis.score),
        "log_probs": np.array(hypothesis.log_probs, np.float32),
        "finish_reason": hypothesis.finish_reason,
    }
    if hypothesis.unmet:
        assert entry.search  # it has found the hypothesis
        written["unmet"] = [entry.search.required[i].asked for i in hypothesis.unmet]
    if entry.search and entry.search.draft:
        written |= {"drafted": hypothesis.drafted, "accepted": hypothesis.accepted}
    if hypothesis.top_log_probs is not None:
        tops = [write_alternatives(model, each) for each in hypothesis.top_log_probs]
        # Write JSON at once: objects take five times the memory, and there may be a million.
        text = orjson.dumps(tops, option=orjson.OPT_SERIALIZE_NUMPY)
        written["top_log_probs"] = orjson.Fragment(text)
    if entry.selection.layers:
        written["attention"] = write_blocks(model, entry, source, target, answer, rank)
    return written


def join_results(
    sources: Sources,
    document: Document,
    failed: Container[int],
    aligned: Sequence[Sequence[Aligned]] = (),
) -> Document:
    """Return the answer of /v1/decode for whole sources, given `document`, that for their
    sentences. Neither has the results that have `failed`.

    `aligned` has the target of each hypothesis of each sentence, if they are put into markup.
    """
    if not sources.texts:
        return document
    sentences: dict[int, list[dict[str, Any]]] = {
        i: [] for i in range(len(sources.texts)) if i not in failed
    }
    targets: dict[int, list[Sequence[Aligned]]] = {i: [] for i in sentences}
    valid = [fields for fields in sources.event_fields if fields["result"] not in failed]
    for fields, result in zip(valid, document["results"], strict=True):
        span = {"start": fields["start"], "end": fields["end"]}
        sentences[fields["result"]].append({**span, **result})
    for fields, each in zip(valid, aligned, strict=False):
        targets[fields["result"]].append(each)
    joined = [join_sentences(sources.texts[i], each, targets[i]) for i, each in sentences.items()]
    return {**document, "results": joined}


def join_sentences(
    text: Text, results: list[dict[str, Any]], aligned: Sequence[Sequence[Aligned]]
) -> dict[str, Any]:
    spans = [Span(result["start"], result["end"]) for result in results]
    if text.document:
        for result, span in zip(results, spans, strict=True):
            result["source"] = text.text[span.start : span.end]
    # A text without sentences stays as it is.
    ranked: Iterable[tuple[Any, ...]] = [()]
    if results:
        ranked = zip(*(result["hypotheses"] for result in results), strict=False)

    def write(rank: int, texts: Sequence[str]) -> str:
        if text.document is None:
            return replace(text.text, spans, texts)
        own = [Translated(span, *each[rank]) for span, each in zip(spans, aligned, strict=True)]
        return text.document.write(own)

    hypotheses = [
        {
            "text": write(rank, [each["text"] for each in joined]),
            "score": np.float32(sum(float(each["score"]) for each in joined)),
            "finish_reason": join_reasons({each["finish_reason"] for each in joined}),
            **join_unmet(each.get("unmet", []) for each in joined),
            **join_words(spans, joined),
        }
        for rank, joined in enumerate(ranked)
    ]
    tokens = sum(result["source_tokens"] for result in results)
    return {"hypotheses": hypotheses, "source_tokens": tokens, "sentences": results}


def join_words(
    spans: Sequence[Span], hypotheses: Sequence[dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Return the words of all sentences, if they have some, with offsets in the joined text."""
    if not hypotheses or not all("words" in each for each in hypotheses):
        return {}
    words: list[dict[str, Any]] = []
    longer = 0  # characters that the text has gained so far
    for span, each in zip(spans, hypotheses, strict=True):
        by = span.start + longer
        words += [
            {**word, "start": word["start"] + by, "end": word["end"] + by} for word in each["words"]
        ]
        longer += len(each["text"]) - (span.end - span.start)
    return {"words": words}


def join_reasons(reasons: Collection[str]) -> str:
    """Return why a text ended: length if any of its sentences was cut."""
    return next((reason for reason in ("length", "stop") if reason in reasons), "eos")


def join_unmet(unmet: Iterable[list[Any]]) -> dict[str, Any]:
    """Return the phrases that some sentence lacks, each once; nothing if there is none."""
    lacking = dict.fromkeys(asked for each in unmet for asked in each)
    return {"unmet": [*lacking]} if lacking else {}


def write_alternatives(model: Model, alternatives: Alternatives) -> list[dict[str, Any]]:
    ids, log_probs = alternatives["id"].tolist(), alternatives["log_prob"]
    return [
        {"token": model.target.name(i), "id": i, "log_prob": log_prob}
        for i, log_prob in zip(ids, log_probs, strict=True)
        if log_prob > DEAD
    ]


def read_target(model: Model, entry: Entry, hypothesis: Hypothesis) -> Tokens:
    """Return the whole target: the target prefix and the generated tokens."""
    return model.target.decode([*entry.prefix, *hypothesis.token_ids])


def write_attention(
    model: Model, answered: Sequence[tuple[Entry, Tokens, Tokens | None, Answer]]
) -> Document:
    """Return the answer of /v1/attention, given each entry with its source, its target (None: the
    decoded one) and its answer."""
    results: list[dict[str, Any]] = []
    for entry, source, given, answer in answered:
        target = read_target(model, entry, answer.hypotheses[0]) if given is None else given
        blocks = write_blocks(model, entry, source, target, answer)
        results.append({"source": source.text, "target": target.text, "attention": blocks})
    return {"model": model.name, "results": results}


def write_blocks(
    model: Model, entry: Entry, source: Tokens, target: Tokens, answer: Answer, rank: int = 0
) -> list[dict[str, Any]]:
    """Return a labelled block for each selected kind, for the hypothesis of this rank.

    The rows of decoder attention are the generated tokens. Its columns are the tokens that the
    decoder read to predict them: the start tokens, then the target without its last token.
    """
    start_ids = model.manifest.start_ids(entry.language)
    start = [Token(model.target.name(i), i, None, None) for i in start_ids]
    prefix_length = len(entry.prefix)
    generated = target.tokens[prefix_length:]
    read = [*start, *target.tokens[:prefix_length], *generated[:-1]]
    axes: dict[AttentionKind, tuple[list[Token], list[Token]]] = {
        "encoder": (source.tokens, source.tokens),
        "decoder": (generated, read),
        "cross": (generated, source.tokens),
    }
    selection, attention = entry.selection, answer.attention[rank]
    blocks = [
        selection.block(kind, attention[kind], *axes[kind], prefix_length)
        for kind in selection.layers
    ]
    if selection.aligns:
        steps = selection.steps(len(generated))
        weights = answer.alignment[rank][prefix_length:]
        aligned = align_texts(weights, source, target, steps, prefix_length)
        next(each for each in blocks if each["kind"] == "cross")["alignment"] = aligned
    return blocks


def write_tokens(text: Tokens) -> dict[str, Any]:
    return {
        "tokens": [token.text for token in text.tokens],
        "token_ids": text.ids,
        "offsets": [
            None if token.start is None else [token.start, token.end] for token in text.tokens
        ],
    }


def usage_of(sources: Sequence[Sized], targets: Sequence[Sized]) -> dict[str, int]:
    """Return how many tokens went in and came out."""
    return {"source_tokens": sum(map(len, sources)), "target_tokens": sum(map(len, targets))}


def write_score(target: Tokens, answer: Answer) -> dict[str, Any]:
    assert answer.log_probs is not None
    log_probs = answer.log_probs.astype(np.float64)
    mean = float(log_probs.mean())
    return {
        "tokens": [token.text for token in target.tokens],
        "log_probs": answer.log_probs,
        "sum": np.float32(log_probs.sum()),
        "mean": np.float32(mean),
        "perplexity": perplexity_of(mean),
    }


def perplexity_of(mean: float) -> float:
    """Return exp(-mean), or the largest number that JSON can hold if it is larger."""
    return math.exp(-mean) if -mean < LARGEST_EXPONENT else sys.float_info.max
