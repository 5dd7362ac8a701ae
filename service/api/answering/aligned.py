"""Use the alignment of decoded targets: say which places of both texts belong together, and put
words of the source where the model wrote its token of unknown words."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from service.arrays import IntArray
from service.attention import pair_tokens
from service.serving.model import Model
from service.text.markup.placing import PlacePair, letters_in
from service.text.sentences import Span
from service.text.tokenizer import has_letters
from service.text.tokens import Token, Tokens
from service.text.words import find_words
from service.wire import Answer, Entry


class Aligned(NamedTuple):
    """The text of a target, and the places in it that belong to places of its source."""

    text: str
    pairs: list[PlacePair]


def read_aligned(
    model: Model, entry: Entry, source: Tokens, answer: Answer, *, replace_unknown: bool
) -> list[Aligned]:
    """Return the target of each hypothesis, without pairs if the entry asked for none. If
    `replace_unknown`, it has words of the source in the place of unknown tokens."""
    by, first = source.start, len(entry.prefix)
    source = source.shift(-by)  # so that its tokens count in its own text
    stand_in = model.target.stand_in if replace_unknown else None
    aligned: list[Aligned] = []
    for i, hypothesis in enumerate(answer.hypotheses):
        ids = [*entry.prefix, *hypothesis.token_ids]
        unknown: set[int] = set()
        if stand_in is not None:  # which is written as a word would be
            unknown = {k for k in range(first, len(ids)) if ids[k] in model.target.unknown}
            ids = [stand_in if k in unknown else each for k, each in enumerate(ids)]
        target = model.target.decode(ids)
        pairs = np.empty((0, 2), np.int64)
        if answer.alignment:
            pairs = np.concatenate(
                [
                    pair_tokens(answer.alignment[i], target.tokens, columns)
                    for columns in (source.tokens, words_alone(source))
                ]
            )
        if unknown:
            target = replace_tokens(target, words_for(unknown, source, target, pairs))
        aligned.append(Aligned(target.text, places_of(source, target, pairs, by)))
    return aligned


def words_alone(source: Tokens) -> list[Token]:
    """Return tokens of which only those with letters have a place, so that a word of the target is
    aligned to none of the signs, on which attention rests."""
    return [
        token
        if token.start is not None and has_letters(source.text[token.start : token.end])
        else Token(token.text, token.id, None, None)
        for token in source.tokens
    ]


def places_of(source: Tokens, target: Tokens, pairs: IntArray, by: int) -> list[PlacePair]:
    """Return the places of pairs of tokens, where the source begins `by` characters later."""
    sources = [Span(*(by + at for at in span_of(token))) for token in source.tokens]
    return [
        PlacePair(sources[here], span_of(target.tokens[there])) for here, there in pairs.tolist()
    ]


def span_of(token: Token) -> Span:
    """Return the offsets of a token that is not special."""
    return Span(token.start or 0, token.end or 0)


def words_for(
    unknown: Collection[int], source: Tokens, target: Tokens, pairs: IntArray
) -> dict[int, str]:
    """Return what stands in the source for each unknown token: the word that is aligned to it, or
    only the token if the target has more of that word.

    Of unknown tokens for the same word, one after the other, the first gets it.
    """
    sources: dict[int, int] = {there: here for here, there in pairs.tolist()}
    spans = {k: Span(word.start, word.end) for word in find_words(source) for k in word.tokens}
    known = {
        spans.get(here)
        for there, here in sources.items()
        if there not in unknown and has_letters(target.tokens[there].text)
    }
    found: dict[int, Span] = {}
    for k in unknown & sources.keys():
        token = span_of(source.tokens[sources[k]])
        word = spans.get(sources[k], token)
        is_word = word not in known and has_letters(source.text[token.start : token.end])
        found[k] = (letters_in(source.text, word) if is_word else None) or token
    return {
        k: "" if found.get(k - 1) == span else source.text[span.start : span.end]
        for k, span in found.items()
    }


def replace_tokens(target: Tokens, words: Mapping[int, str]) -> Tokens:
    """Return a target with words in the place of some of its tokens; an empty one takes the white
    space before it."""
    text, end = "", 0
    tokens: list[Token] = []
    for k, token in enumerate(target.tokens):
        if token.start is None or token.end is None:
            tokens.append(token)
            continue
        word = words.get(k, target.text[token.start : token.end])
        text += target.text[end : token.start] if word or k not in words else ""
        tokens.append(Token(token.text, token.id, len(text), len(text) + len(word)))
        text += word
        end = max(end, token.end)
    return Tokens.of(text + target.text[end:], tokens)
