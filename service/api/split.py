"""Split the sources of a request into sentences, and join what was decoded for each of them."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, count, repeat
from typing import Any, Literal

import numpy as np
from fastapi import Request

from service.api.steps import TextField, raise_errors, read_texts
from service.errors import MOST_FAULTS, Fault, HeedError, Invalid, TooLarge, shorten
from service.formats.json import Document
from service.http.record import record_of
from service.http.waiting import compute_reading, settings_of
from service.offsets import Token
from service.sentences import Span, cut, replace, split
from service.tokenizer import Tokenizer, Tokens

Split = Literal["none", "sentences"]
REMEDY = ', or send "split": "sentences" to decode its sentences one by one'


@dataclass(frozen=True, slots=True)
class Sentence:
    """A part of a text that is decoded apart. Its tokens have their offsets in the whole text."""

    result: int
    span: Span
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class Sources:
    """What is decoded: each source, or, if `texts` were split, each of their sentences.

    `places` are the fields that say in an event of a stream which of them it belongs to.
    """

    tokens: list[Tokens]
    places: list[dict[str, int]]
    texts: list[str] = field(default_factory=list[str])

    def join(self, document: Document) -> Document:
        """Return the answer of /v1/decode for whole sources, given that for all sentences."""
        if not self.texts:
            return document
        sentences: list[list[dict[str, Any]]] = [[] for _ in self.texts]
        for place, result in zip(self.places, document["results"], strict=True):
            span = {"start": place["start"], "end": place["end"]}
            sentences[place["result"]].append({**span, **result})
        return {**document, "results": list(map(join_sentences, self.texts, sentences))}


def join_sentences(text: str, results: list[dict[str, Any]]) -> dict[str, Any]:
    spans = [Span(result["start"], result["end"]) for result in results]
    ranked = zip(*(result["hypotheses"] for result in results), strict=False)
    hypotheses = [
        {
            "text": replace(text, spans, [each["text"] for each in joined]),
            "score": np.float32(sum(float(each["score"]) for each in joined)),
        }
        for joined in ranked
    ]
    tokens = sum(result["source_tokens"] for result in results)
    return {"hypotheses": hypotheses, "source_tokens": tokens, "sentences": results}


async def read_sources(request: Request, source: TextField, how: Split) -> Sources:
    """Return the tokens of all sources or sentences, and record how long this took.

    Raise Invalid if ids are to be split, TooLarge for more sentences than a request may have
    sources, and the errors of `read_fields`.
    """
    if how == "none":
        tokens = await read_texts(request, source._replace(remedy=REMEDY))
        return Sources(tokens, [{"result": i} for i in range(len(tokens))])
    texts = texts_of(source)
    started, limit = time.monotonic(), settings_of(request).max_sources
    size = sum(map(len, texts))
    read = await compute_reading(request, lambda: split_texts(source, texts, limit), size)
    record_of(request).end_stage("tokenize", started)
    return Sources([sentence.tokens for sentence in read], places_of(read), texts)


def places_of(read: Sequence[Sentence]) -> list[dict[str, int]]:
    numbers = defaultdict[int, Iterator[int]](count)
    return [
        {"result": each.result, "sentence": next(numbers[each.result]), **each.span._asdict()}
        for each in read
    ]


def texts_of(source: TextField) -> list[str]:
    items = [source.value] if isinstance(source.value, str) else source.value
    texts = [item for item in items if isinstance(item, str)]
    if len(texts) < len(items):
        detail = "needs texts to split, but source holds ids: send texts, or omit split"
        raise Invalid.at("/split", detail)
    return texts


def split_texts(source: TextField, texts: Sequence[str], limit: int) -> list[Sentence]:
    spans = list(map(split, texts))
    check_count(source, sum(map(len, spans)), limit)
    read: list[Sentence] = []
    errors: list[HeedError] = []
    outcomes = map(read_text, repeat(source), count(), texts, spans)
    for outcome in chain.from_iterable(outcomes):
        if isinstance(outcome, HeedError):
            errors.append(outcome)
        else:
            read.append(outcome)
        if len(errors) == MOST_FAULTS:
            break
        check_count(source, len(read), limit, "at least ")  # long ones have become several
    raise_errors(errors)
    return read


def check_count(source: TextField, found: int, limit: int, least: str = "") -> None:
    if found > limit:
        limits = f"sentences and the limit is {limit}: send fewer at a time"
        raise TooLarge.at(source.pointer, f"splits into {least}{found} {limits}")


def read_text(
    source: TextField, result: int, text: str, spans: Sequence[Span]
) -> Iterator[Sentence | HeedError]:
    """Yield the sentences of a text, or the errors of those that the tokenizer refuses.

    Skip refused sentences without letters and digits, such as a line of asterisks: they stay in the
    text as they are.
    """
    pointer = source.pointer if isinstance(source.value, str) else f"{source.pointer}/{result}"
    encode = encoder_of(source.tokenizer, pointer, text)

    def fits(span: Span) -> bool:
        return not isinstance(encode(span), TooLarge)

    wanted = [span for span in spans if has_letters(text, span) or isinstance(encode(span), Tokens)]
    for span in chain.from_iterable(cut(text, sentence, fits) for sentence in wanted):
        outcome = encode(span)
        if isinstance(outcome, Tokens):
            yield Sentence(result, span, shift(outcome, span.start))
        else:
            yield locate(outcome, span.start)
    if not wanted:
        detail = f"{shorten(text)!r} holds no token; send a text with at least one"
        yield Invalid.at(pointer, detail)


def has_letters(text: str, span: Span) -> bool:
    return any(map(str.isalnum, text[span.start : span.end]))


def encoder_of(
    tokenizer: Tokenizer, pointer: str, text: str
) -> Callable[[Span], Tokens | Invalid | TooLarge]:
    """Return a function that tokenizes a part of a text, or returns why it is refused. It remembers
    what it has returned."""

    @cache
    def encode(span: Span) -> Tokens | Invalid | TooLarge:
        try:
            return tokenizer.encode(text[span.start : span.end], pointer)
        except (Invalid, TooLarge) as error:
            return error

    return encode


def shift(tokens: Tokens, by: int) -> Tokens:
    """Return tokens whose offsets count from `by` characters before their text."""

    def shifted(token: Token) -> Token:
        if token.start is None or token.end is None:
            return token
        return Token(token.text, token.id, token.start + by, token.end + by)

    return Tokens(tokens.text, list(map(shifted, tokens.tokens)))


def locate(error: Invalid | TooLarge, start: int) -> HeedError:
    """Return the error of a sentence, with the sentence's offset in the text in each detail.

    Offsets that a detail already names still count from the start of the sentence.
    """
    where = f"(in the sentence at offset {start}, from which other offsets count)"
    return type(error).of([Fault(each.pointer, f"{where} {each.detail}") for each in error.faults])
