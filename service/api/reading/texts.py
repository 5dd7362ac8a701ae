"""Read the texts of a request: tokenize them or their sentences, or look up lists of ids."""

import time
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, compress, count, islice
from typing import Literal, NamedTuple

from service.api.reading.call import Call
from service.api.reading.faults import Faults
from service.api.reading.field_types import TextsOrIds
from service.api.reading.languages import RequestLanguages, choose_languages
from service.api.reading.requests import LanguageRequest
from service.errors import MOST_FAULTS, HeedError, Invalid, TooLarge, shorten
from service.serving.model import Model
from service.text.markup.document import MarkupDocument, MarkupKind, check_markup, read_document
from service.text.sentences import Span, cut, split
from service.text.tokenizer import Tokenizer, check_unicode
from service.text.tokens import Tokens

Split = Literal["none", "sentences"]
REMEMBERED_PARTS = 4  # parts of a text: each is tried for its length before it is read
TO_SPLIT = ', or send "split": "sentences" to decode its sentences one by one'


class TextField(NamedTuple):
    """A field of the body that holds texts or lists of ids, and the tokenizer that reads it.

    `remedy` says what to do about a text that is too long, in addition to shortening it. `markup`
    is that of the texts; `apart`: what stands between two tags is a text of its own. `placed`: the
    answer has the tokens of all texts.
    """

    pointer: str
    value: TextsOrIds
    tokenizer: Tokenizer
    remedy: str = ""
    markup: MarkupKind | None = None
    apart: bool = False
    placed: bool = False

    @property
    def items(self) -> Sequence[str | list[int]]:
        """The texts or lists of ids."""
        return [self.value] if isinstance(self.value, str) else self.value

    def place(self, result: int) -> str:
        """Return the pointer to the text of this index."""
        return self.pointer if isinstance(self.value, str) else f"{self.pointer}/{result}"


def read_languages(
    body: LanguageRequest,
    model: Model,
    sources: TextsOrIds,
    faults: Faults,
    *,
    decodes: bool = True,
) -> RequestLanguages:
    """Return the languages of a request, and add their faults. `sources` are those to tokenize;
    `decodes` says whether the decoder runs."""
    known = model.manifest.languages
    named = body.source_language is not None or body.target_language is not None
    if named or known.source or known.target:
        return choose_languages(body, model, sources, faults, decodes)
    return RequestLanguages(model.source, ())


async def tokenize_texts(call: Call, field: TextField, faults: Faults) -> list[Tokens]:
    """Return the tokens of each valid text. Add the errors of invalid texts to `faults`."""
    (sequences,) = await read_fields(call, [field], faults)
    return sequences


async def read_pairs(
    call: Call, source: TextField, targets: Sequence[TextField], faults: Faults
) -> list[list[Tokens]]:
    """Return the tokens of the sources, and those of each field of targets, where all are valid.
    Add the other errors to `faults`, and one for each field with more or fewer targets than
    sources."""
    sources = count_texts(source.value)
    for each in targets:
        if (found := count_texts(each.value)) != sources:
            counts = f"{how_many(found, 'target')} for {how_many(sources, 'source')}"
            faults.add(Invalid.at(each.pointer, f"holds {counts}: give one for each source"))
    return await read_fields(call, [source, *targets], faults)


def texts_of(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def count_texts(value: TextsOrIds) -> int:
    return 1 if isinstance(value, str) else len(value)


def how_many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


async def read_fields(
    call: Call, fields: Sequence[TextField], faults: Faults
) -> list[list[Tokens]]:
    """Return the tokens of each text or list of ids in each field, and record how long this took.

    Add each error to `faults`, and leave its index out of all fields. If a field has more than
    max_sources texts, add only this error.
    """
    limit = call.settings.max_sources
    too_long = [each for each in fields if count_texts(each.value) > limit]
    for each in too_long:
        holds = f"holds {count_texts(each.value)} sequences and the limit is {limit}"
        faults.add(TooLarge.at(each.pointer, f"{holds}: send several requests"))
    if too_long:
        return [[] for _ in fields]
    started = time.monotonic()
    size = sum(len(item) for each in fields for item in each.items)
    sequences = await call.compute_reading(lambda: tokenize_fields(fields, faults), size)
    call.end_stage("tokenize", started)
    return sequences


def tokenize_fields(fields: Sequence[TextField], faults: Faults) -> list[list[Tokens]]:
    read = [dict(tokenize_field(each, faults)) for each in fields]
    valid = sorted(set[int].intersection(*map(set, read)))
    return [[each[result] for result in valid] for each in read]


def tokenize_field(field: TextField, faults: Faults) -> Iterator[tuple[int, Tokens]]:
    """Yield the tokens of each valid text or list of ids, with its index. Add the errors of invalid
    ones to `faults`; stop at MOST_FAULTS unless the request is partial."""
    refused = 0
    for result, item in enumerate(field.items):
        try:
            tokens = tokenize_item(field, item, field.place(result))
        except (Invalid, TooLarge) as error:
            faults.add(error, result)
            refused += 1
        else:
            yield result, tokens
        if refused == MOST_FAULTS and not faults.partial:
            return


def tokenize_item(field: TextField, item: str | list[int], pointer: str) -> Tokens:
    """Return the tokens of a text or a list of ids. Raise Invalid or TooLarge."""
    if not isinstance(item, str):
        return field.tokenizer.read_ids(item, pointer)
    try:
        return field.tokenizer.encode(item, pointer, placed=field.placed)
    except TooLarge as error:
        raise TooLarge.at(pointer, error.faults[0].detail + field.remedy) from None


class Text(NamedTuple):
    """A text to split; that of a document if it has markup."""

    text: str
    document: MarkupDocument | None = None


@dataclass(frozen=True, slots=True)
class Sentence:
    """A part of a text that is decoded apart. Its tokens have their offsets in the whole text."""

    result: int
    span: Span
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class Sources:
    """The texts to decode: each valid source or, if `texts` were split, each of their sentences.

    `results` has the index of the result to which each of `tokens` belongs; `event_fields` are the
    fields that say this in an event of a stream. `marked` says whether markup has marks to place in
    the target of each.
    """

    tokens: list[Tokens]
    results: list[int]
    event_fields: list[dict[str, int]]
    marked: list[bool]
    texts: list[Text] = field(default_factory=list[Text])

    def only(self, results: Container[int]) -> "Sources":
        """Return the sources of these results."""
        kept = [result in results for result in self.results]
        return replace(
            self,
            tokens=[*compress(self.tokens, kept)],
            results=[*compress(self.results, kept)],
            event_fields=[*compress(self.event_fields, kept)],
            marked=[*compress(self.marked, kept)],
        )


async def read_sources(call: Call, source: TextField, how: Split, faults: Faults) -> Sources:
    """Return the tokens of all valid sources, or of their sentences, and record how long this took.

    Add the errors of invalid sources to `faults`. Also add an error if ids are to be split, or if
    there are more sentences than a request may have sources.
    """
    if how == "none" and source.markup is None:
        tokens = await tokenize_texts(call, source._replace(remedy=TO_SPLIT), faults)
        valid = faults.valid(count_texts(source.value))
        return Sources(tokens, valid, [{"result": i} for i in valid], [False] * len(tokens))
    given: list[str] = []
    with faults.collect():
        given = require_texts(source, "split" if source.markup is None else "markup")
    started, limit = time.monotonic(), call.settings.max_sources
    size = sum(map(len, given))
    if how == "none":
        source = source._replace(remedy=TO_SPLIT)

    def work() -> tuple[list[Text], list[Sentence]]:
        texts: list[Text] = []
        with faults.collect():
            texts = read_documents(source, given, faults)
            return texts, split_texts(source, texts, how, limit, faults)
        return texts, []

    texts, read = await call.compute_reading(work, size)
    call.end_stage("tokenize", started)
    results = [sentence.result for sentence in read]
    tokens = [sentence.tokens for sentence in read]
    documents = [texts[result].document for result in results]
    marked = [
        document is not None and document.has_marks(sentence.span.start)
        for document, sentence in zip(documents, read, strict=True)
    ]
    return Sources(tokens, results, event_fields_of(read), marked, texts)


def read_documents(source: TextField, given: Sequence[str], faults: Faults) -> list[Text]:
    """Return the texts with what their markup says; texts with faults are empty. Raise TooLarge."""
    kind = source.markup
    if kind is None:
        return [Text(text) for text in given]
    check_markup(given, kind, source.pointer)
    texts: list[Text] = []
    wanted = source.tokenizer.has_text
    for result, text in enumerate(given):
        texts.append(Text(""))
        try:
            check_unicode(text, source.place(result))
            read = read_document(text, kind, wanted, source.place(result), whole=not source.apart)
            texts[-1] = Text(read.text, read)
        except Invalid as error:
            faults.add(error, result)
    return texts


def event_fields_of(read: Sequence[Sentence]) -> list[dict[str, int]]:
    numbers = defaultdict[int, Iterator[int]](count)
    return [
        {"result": each.result, "sentence": next(numbers[each.result]), **each.span._asdict()}
        for each in read
    ]


def require_texts(source: TextField, option: str) -> list[str]:
    texts = [item for item in source.items if isinstance(item, str)]
    if len(texts) < len(source.items):
        detail = f"needs texts, but source holds ids: send texts, or omit {option}"
        raise Invalid.at(f"/{option}", detail)
    return texts


def split_texts(
    source: TextField, texts: Sequence[Text], how: Split, limit: int, faults: Faults
) -> list[Sentence]:
    """Return the sentences of the texts without an error. Add the errors of the other texts to
    `faults`: at most MOST_FAULTS for each text if the request is partial, else for all together.

    Raise TooLarge for more than `limit` sentences.
    """
    spans: list[list[Span]] = []
    found = 0
    for text in texts:
        spans.append([*islice(spans_of(text, how), limit + 1)])
        found += max(1, len(spans[-1]))  # a text without any still has a result
        check_count(source, found, limit)
    read: list[Sentence | None] = []
    room = MOST_FAULTS
    for result, (text, spans_of_text) in enumerate(zip(texts, spans, strict=True)):
        valid: list[Sentence | None] = []
        errors: list[HeedError] = []
        for outcome in read_text(source, result, text, spans_of_text, how):
            if isinstance(outcome, HeedError):
                errors.append(outcome)
            else:
                valid.append(outcome)
            if len(errors) == room:
                break  # a long text may be cut into very many parts
            check_count(source, len(read) + len(valid), limit)
        for error in errors:
            faults.add(error, result)
        read += [] if errors else valid
        room -= 0 if faults.partial else len(errors)
        if not room:
            break
    return [sentence for sentence in read if sentence]


def spans_of(text: Text, how: Split) -> Iterator[Span]:
    """Yield the sentences of a text or, if it is not split, the texts of its document."""
    if text.document and how == "none":
        return (unit.span for unit in text.document.units)
    return split(text.text)


def check_count(source: TextField, found: int, limit: int) -> None:
    if found > limit:
        limits = f"{limit} sentences, which is the limit: send fewer at a time"
        raise TooLarge.at(source.pointer, f"splits into more than {limits}")


def read_text(
    source: TextField, result: int, given: Text, spans: Sequence[Span], how: Split
) -> Iterator[Sentence | HeedError | None]:
    """Yield the sentences of a text, or the errors of those that the tokenizer refuses.

    Skip sentences without letters and digits, such as a line of asterisks, and leave them in the
    text as they are: a model would invent a target. If the model's vocabulary has no letters
    either, skip none. Yield None for a skipped part of a long sentence: to find it takes as long as
    to find others.
    """
    pointer, text = source.place(result), given.text
    try:
        check_unicode(text, pointer)
    except Invalid as error:
        yield error  # no sentence with half a surrogate pair is skipped: JSON cannot hold it
        return
    encode = encoder_of(source.tokenizer, pointer, text)

    def fits(span: Span) -> bool:
        return how == "none" or not isinstance(encode(span), TooLarge)

    def has_text(span: Span) -> bool:
        return source.tokenizer.has_text(text[span.start : span.end])

    wanted = filter(has_text, spans)
    for span in chain.from_iterable(cut(text, sentence, fits) for sentence in wanted):
        if not has_text(span):
            yield None
            continue
        outcome = encode(span)
        if isinstance(outcome, Tokens):
            yield Sentence(result, span, outcome.shift(span.start))
        elif given.document:
            where = f"(in the text {shorten(text[span.start : span.end])!r}, where offsets count)"
            yield locate(outcome, where, source.remedy if isinstance(outcome, TooLarge) else "")
        else:
            where = f"(in the sentence at offset {span.start}, from which other offsets count)"
            yield locate(outcome, where)


def encoder_of(
    tokenizer: Tokenizer, pointer: str, text: str
) -> Callable[[Span], Tokens | Invalid | TooLarge]:
    """Return a function that tokenizes a part of a text, or returns why it is refused. It remembers
    its last results."""

    @lru_cache(REMEMBERED_PARTS)
    def encode(span: Span) -> Tokens | Invalid | TooLarge:
        try:
            return tokenizer.encode(text[span.start : span.end], pointer)
        except (Invalid, TooLarge) as error:
            return error.forget_frames()

    return encode


def locate(error: Invalid | TooLarge, where: str, remedy: str = "") -> HeedError:
    """Return the error of a part of a text, with its place, and a remedy, in each detail.

    Offsets that a detail already names still count from the start of the part.
    """
    return error.change_faults(
        lambda fault: replace(fault, detail=f"{where} {fault.detail}{remedy}")
    )
