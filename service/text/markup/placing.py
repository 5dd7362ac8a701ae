"""Put marks of a source into its target: each where the words went beside which it stood.

An element gets the stretch of the target in which most words belong to its own words and fewest to
others; the elements of fewest words choose first, so that a word in the middle of a long one is not
lost to it. Every mark stays in the element that it was in, and elements side by side never overlap,
so the result is always well-formed.
"""

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.text.markup.unit import CLOSING_SIGNS, OBJECT, SPACE, Mark, NumberedMarkup
from service.text.sentences import Span
from service.text.words import ALONE

WORD = re.compile(rf"[^\W{ALONE}]+|\S")
TIE = 1e-3  # for a piece of which half is a mark's own
EQUAL = 1e-6  # sums that differ by less are equal
OPENING = frozenset("([{\u2018\u201c\u201e\u00ab\u00bf\u00a1\uff08\u300c\u300e")


class PlacePair(NamedTuple):
    """Places of the source and the target that belong together, such as those of two tokens."""

    source: Span
    target: Span


def words_of(text: str) -> list[Span]:
    """Return the words and other signs of a text."""
    return [Span(*found.span()) for found in WORD.finditer(text)]


def trim_pairs(text: str, target: str, pairs: Sequence[PlacePair]) -> Iterator[PlacePair]:
    """Yield pairs without the signs around words: a token may be a word with its comma. Leave out
    pairs of a word with signs alone, to which attention goes that finds no word."""
    for source, place_in_target in pairs:
        here, there = letters_in(text, source), letters_in(target, place_in_target)
        if (here is None) == (there is None):
            yield PlacePair(here or source, there or place_in_target)


def letters_in(text: str, span: Span) -> Span | None:
    """Return the part of a span from its first to its last letter or digit; None without one."""
    found = [at for at in range(*span) if text[at].isalnum()]
    return Span(found[0], found[-1] + 1) if found else None


class Votes:
    """Which parts of the source the pieces of a target belong to: each pair is a vote."""

    def __init__(self, pieces: Sequence[Span], pairs: Sequence[PlacePair]) -> None:
        self.pieces = pieces
        ends = [piece.end for piece in pieces]
        votes: list[tuple[float, int]] = []  # the middle of a place in the source, and the piece
        for source, target in pairs:
            piece = bisect_right(ends, target.start)
            while piece < len(pieces) and pieces[piece].start < target.end:
                votes.append(((source.start + source.end) / 2, piece))
                piece += 1
        votes.sort()
        self.middles = [middle for middle, _ in votes]
        self._pieces = np.array([piece for _, piece in votes], np.intp)
        self._totals = np.bincount(self._pieces, minlength=len(pieces))
        self._most: dict[tuple[float, float], Span | None] = {}  # what has been found

    def between(self, start: float, end: float) -> NDArray[np.intp]:
        """Return the piece of each vote for source[start:end]."""
        return self._pieces[bisect_left(self.middles, start) : bisect_left(self.middles, end)]

    def stretch(self, mark: Mark, room: Span, taken: Sequence[Span]) -> Span | None:
        """Return the stretch of the target that belongs to a mark, in `room` and outside of the
        `taken` ones; None if nothing does."""
        own = self.between(mark.start, mark.end)
        first = bisect_left(self.pieces, room.start, key=lambda piece: piece.start)
        stop = bisect_right(self.pieces, room.end, key=lambda piece: piece.end)
        own = own[(own >= first) & (own < stop)]
        if not len(own):
            return None
        first, stop = int(own.min()), int(own.max()) + 1
        votes = np.bincount(own - first)
        gains: NDArray[np.float64] = 2 * votes / np.maximum(self._totals[first:stop], 1) - 1
        gains[self._totals[first:stop] == 0] = 0
        gains[votes > 0] += TIE
        loss = gains[gains > 0].sum() + 1  # more than a stretch across what is taken can gain
        for span in overlapping(taken, self.pieces[first].start, self.pieces[stop - 1].end):
            low = bisect_right(self.pieces, span.start, first, stop, key=lambda piece: piece.end)
            high = bisect_left(self.pieces, span.end, low, stop, key=lambda piece: piece.start)
            gains[low - first : high - first] = 0
            gains[low - first : min(low + 1, high) - first] = -loss
        found = best_sum(gains)
        if found is None:
            return None
        return Span(self.pieces[first + found.start].start, self.pieces[first + found.end - 1].end)

    def most(self, start: float, end: float) -> Span | None:
        """Return the piece with most votes of source[start:end]; None if it has none."""
        if (start, end) not in self._most:  # many marks may stand beside one word
            pieces, votes = np.unique(self.between(start, end), return_counts=True)
            found = self.pieces[int(pieces[votes.argmax()])] if len(pieces) else None
            self._most[start, end] = found
        return self._most[start, end]

    def piece(self, vote: int) -> Span:
        return self.pieces[self._pieces[vote]]


def best_sum(gains: NDArray[np.float64]) -> Span | None:
    """Return the shortest stretch with the largest sum; None if no sum is above 0. Of equal ones,
    it is the first."""
    sums = np.concatenate([[0], np.cumsum(gains)])
    lowest = np.minimum.accumulate(sums[:-1])
    rises = sums[1:] - lowest
    if (largest := rises.max()) < EQUAL:
        return None
    last = int((rises > largest - EQUAL).argmax())
    start = last - int((sums[last::-1] - lowest[last] < EQUAL).argmax())
    return Span(start, last + 1)


def overlapping(spans: Sequence[Span], start: int, end: int) -> Sequence[Span]:
    """Return those of sorted spans, which do not overlap each other, that overlap a stretch."""
    low = bisect_right(spans, start, key=lambda span: span.end)
    return spans[low : bisect_left(spans, end, low, key=lambda span: span.start)]


class Placer:
    """Finds the places of marks in a target."""

    def __init__(
        self, text: str, marks: Sequence[Mark], target: str, pairs: Sequence[PlacePair]
    ) -> None:
        self._text, self._target, self._marks = text, target, marks
        self._words = words_of(text)
        pairs = [*trim_pairs(text, target, pairs)]
        self._by_words = Votes(words_of(target), pairs)
        tokens = sorted({pair.target for pair in pairs if pair.target.start < pair.target.end})
        self._by_tokens = Votes(tokens, pairs)
        self.children: dict[int | None, list[int]] = {}  # of each element, of None those outermost
        for i, mark in enumerate(marks):
            self.children.setdefault(mark.parent, []).append(i)
        self.places = [Span(0, 0) for _ in marks]

    def find(self) -> None:
        around: list[int | None] = [None]
        for parent in around:  # which grows
            self._place_inside(parent)
            around += (i for i in self.children.get(parent, ()) if self._marks[i].closing)

    def _place_inside(self, parent: int | None) -> None:
        inside = self.children.get(parent, [])
        source, room = Span(0, len(self._text)), Span(0, len(self._target))
        if parent is not None:
            source, room = self._marks[parent].span, self.places[parent]
        taken: list[Span] = []
        left: list[int] = []
        for i in sorted(inside, key=lambda i: self._marks[i].end - self._marks[i].start):
            mark = self._marks[i]
            votes = self._by_tokens if self._cuts(mark) else self._by_words
            found = room if mark.span == source else votes.stretch(mark, room, taken)
            if mark.closing and found is not None:
                self.places[i] = found
                insort(taken, found)
            else:
                left.append(i)
        for i in left:
            at = self._point(self._marks[i], source, room)
            for span in overlapping(taken, at, at):
                at = min(span, key=lambda edge: abs(edge - at))
            self.places[i] = Span(at, at)
        self.children[parent] = sorted(inside, key=lambda i: self._order(i))

    def _order(self, i: int) -> tuple[int, bool, int]:
        start, end = self.places[i]
        return start, end > start, i

    def _cuts(self, mark: Mark) -> bool:
        """Return whether a mark begins or ends within a word."""
        return any(overlapping(self._words, at, at) for at in mark.span)

    def _point(self, mark: Mark, source: Span, room: Span) -> int:
        """Return the place of a leaf, or of an element of which no word is in the target, given the
        source of the element around it and its place."""
        at = mark.start
        if at <= source.start:
            return room.start
        if at >= source.end:
            return room.end
        left, right = self._left(at, source.start), self._right(at, source.end)
        before = self._text[at - 1] if mark.closing else mark.before
        following = next(iter(self._text[at : at + 2].split()), SPACE)[0]  # sign after a space
        if before.isalnum() or not following.isalnum():
            left, right = right, left  # it belongs to what comes before it
        found = left if right is None else right
        if found is None:
            return room.start if at - source.start < source.end - at else room.end
        return max(room.start, min(room.end, found))

    def _left(self, at: int, start: int) -> int | None:
        """Return where the word before `at` ends in the target; None if no word does since
        `start`."""
        last = bisect_left(self._by_words.middles, at) - 1
        if last < 0 or self._by_words.middles[last] < start:
            return None
        return self._piece(at, last).end

    def _right(self, at: int, end: int) -> int | None:
        """Return where the word after `at` begins in the target; None if no word does up to
        `end`."""
        first = bisect_left(self._by_words.middles, at)
        if first == len(self._by_words.middles) or self._by_words.middles[first] >= end:
            return None
        return self._piece(at, first).start

    def _piece(self, at: int, vote: int) -> Span:
        """Return the piece of the target to which the word around the middle of a vote belongs: a
        whole word, or a token where `at` is within a word. For a vote between words, as of a token
        that is a space or has several words, it is the next word away from `at`, if any."""
        middle, found = self._by_words.middles[vote], None
        if overlapping(self._words, at, at):
            found = self._by_tokens.most(middle, middle + TIE)
        else:
            begun = bisect_right(self._words, middle, key=lambda word: word.start)
            ended = bisect_right(self._words, middle, key=lambda word: word.end)
            first = begun - 1 if middle < at else ended  # which is the same within a word
            for word in self._words[first : first + 1]:
                found = self._by_words.most(word.start, word.end)
        return found or self._by_words.piece(vote)


class Writer:
    """Writes a target with its marks."""

    def __init__(
        self, target: str, marks: Sequence[Mark], placer: Placer, escape: Callable[[str], str]
    ) -> None:
        self._target, self._marks, self._placer, self._escape = target, marks, placer, escape
        self._at = 0
        self._last = ""  # character
        self._leaf: Mark | None = None  # if it was the last that was shown

    def write(self) -> Iterator[str | int]:
        children = self._placer.children
        around: list[tuple[int | None, Iterator[int]]] = [(None, iter(children[None]))]
        while around:
            parent, inside = around[-1]
            i = next(inside, None)
            if i is None:
                around.pop()
                if parent is not None:
                    yield from self._text(self._placer.places[parent].end)
                    yield self._marks[parent].closing
                continue
            mark = self._marks[i]
            yield from self._text(self._placer.places[i].start)
            if mark.closing:
                yield from mark.opening
                around.append((i, iter(children[i])))
            else:
                yield from self._write_leaf(mark)
        yield from self._text(len(self._target))

    def _text(self, end: int) -> Iterator[str]:
        """Yield the target up to `end`."""
        text = self._target[self._at : end]
        if not text:
            return
        yield self._space_before(text[0])
        yield self._escape(text)
        self._at, self._last, self._leaf = end, text[-1], None

    def _write_leaf(self, mark: Mark) -> Iterator[str | int]:
        if mark.shown:
            yield self._space_before(OBJECT) or space(mark.before, self._last, OPENING)
            self._last, self._leaf = OBJECT, mark
        yield from mark.opening

    def _space_before(self, character: str) -> str:
        """Return the space between the last leaf, if nothing came after it, and a character."""
        return space(self._leaf.after, character, CLOSING_SIGNS) if self._leaf else ""


def space(beside: str, shown: str, tight: frozenset[str]) -> str:
    """Return the space between a leaf and what is shown beside it, given what was beside it in the
    source. Some signs are `tight`: no space comes before a full stop."""
    if not shown or shown.isspace():
        return ""
    if beside == SPACE:
        return "" if shown in tight else SPACE
    return SPACE if shown.isalnum() and not beside.isalnum() else ""


def place(
    text: str,
    marks: Sequence[Mark],
    target: str,
    pairs: Sequence[PlacePair],
    escape: Callable[[str], str],
) -> NumberedMarkup:
    """Return the target with the marks in it, as it is written."""
    if not marks:
        return [escape(target)]
    placer = Placer(text, marks, target, pairs)
    placer.find()
    return list(Writer(target, marks, placer, escape).write())
