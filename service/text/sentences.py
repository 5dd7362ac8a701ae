"""Split a text into sentences, and put the targets of sentences into the place of their sources.

Sentences end where a line ends and at the sentence marks of Unicode, in any script. Where a mark is
ambiguous, two sentences stay together: a model can read two at once, but not half of one.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

LINE = re.compile(r"[^\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")
LETTER = re.compile(r"[^\W_]")  # or a digit

# Marks that also stand inside sentences, words and numbers: . ! ? and such. White space follows
# them where a sentence ends.
SPACED = r".!?\u2026\u037e\u2024\ufe52"
# Marks that only end sentences: the others of Unicode's Sentence_Terminal except the Burmese comma,
# and the Tibetan shad.
UNSPACED = (
    r"\u0589\u061d-\u061f\u06d4\u0700-\u0702\u07f9\u0837\u0839\u083d\u083e\u0964\u0965\u0f0d\u0f0e"
    r"\u104b\u1362\u1367\u1368\u166e\u1735\u1736\u17d4\u17d5\u1803\u1809\u1944\u1945\u1aa8-\u1aab"
    r"\u1b4e\u1b4f\u1b5a\u1b5b\u1b5e\u1b5f\u1b7d-\u1b7f\u1c3b\u1c3c\u1c7e\u1c7f\u203c\u203d"
    r"\u2047-\u2049\u2cf9-\u2cfb\u2e2e\u2e3c\u2e53\u2e54\u2e60\u2e61\u3002\ua4ff\ua60e\ua60f\ua6f3"
    r"\ua6f7\ua876\ua877\ua8ce\ua8cf\ua92f\ua9c8\ua9c9\uaa5d-\uaa5f\uaaf0\uaaf1\uabeb\ufe12\ufe15"
    r"\ufe16\ufe56\ufe57\uff01\uff1f\uff61\U00010a56\U00010a57\U00010f55-\U00010f59"
    r"\U00010f86-\U00010f89\U00011047\U00011048\U000110be-\U000110c1\U00011141-\U00011143"
    r"\U000111c5\U000111c6\U000111cd\U000111de\U000111df\U00011238\U00011239\U0001123b\U0001123c"
    r"\U000112a9\U000113d4\U000113d5\U0001144b\U0001144c\U000115c2\U000115c3\U000115c9-\U000115d7"
    r"\U00011641\U00011642\U0001173c-\U0001173e\U00011944\U00011946\U00011a42\U00011a43\U00011a9b"
    r"\U00011a9c\U00011c41\U00011c42\U00011ef7\U00011ef8\U00011f43\U00011f44\U00016a6e\U00016a6f"
    r"\U00016af5\U00016b37\U00016b38\U00016b44\U00016d6e\U00016d6f\U00016e98\U0001bc9f\U0001da88"
)
# The semicolon asks in Greek, two Ethiopic word spaces are a full stop, and a wide stop is a point
# before a digit.
CLEAR = rf"[{UNSPACED}]|\u1361\u1361|\uff0e(?!\d)"
MARK = rf"(?:(?:[{SPACED}]|{CLEAR}|(?<=[\u0370-\u03ff\u1f00-\u1fff]);)[\ufe00-\ufe0f]?)"
CLOSING = r"\"')\]}\u2019\u201d\u300d\u300f\uff09\u3011\u300b\u3009\u3015\u3017\uff63\uff3d\uff5d"
# Quotes that open in one language and close in another: they close unless a word follows. In French
# a space precedes them.
EITHER = r"\u201c\u2018\u00ab\u2039\u00bb\u203a"
CLOSE = rf"(?:[{CLOSING}]|[{EITHER}](?!\w)|\s[\u00bb\u203a](?!\w))*"
COMMAS = r",;:\u060c\u061b\u104a\u1363-\u1366\u2013\u2014"
WIDE_COMMAS = r"\u3001\uff0c\uff1a\uff1b"

END = re.compile(rf"(?P<marks>{MARK}+(?:\s+{MARK}+)*)(?P<close>{CLOSE})")
# The characters that END begins with: a search for one of many takes a tenth of the time
FIRST = re.compile(rf"[{SPACED}{UNSPACED}\u1361\uff0e;]")
CLEAR_MARK = re.compile(CLEAR)
STOP = re.compile(r"[.\u2026\u2024\ufe52]")
COMMA = re.compile(rf"[{COMMAS}{WIDE_COMMAS}]")
CHINESE_JAPANESE = re.compile(r"[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
NO_LETTERS = re.compile(r"[\W_]{0,8}")  # quotes, brackets and dashes at the start of a sentence
CLAUSE = re.compile(rf"[{COMMAS}{SPACED}]{CLOSE}(?=\s)|[{WIDE_COMMAS}{UNSPACED}]{CLOSE}")
SPACE = re.compile(r"\s+")

WORD_START = r"(?<![\w'\u2019\u0300-\u036f])"
# An initial, an ordinal such as German 3., or an abbreviation without vowels such as Mr or Nr.
ABBREVIATION = re.compile(
    WORD_START + r"(?:[A-Za-z\u00c0-\u0587\u1e00-\u1fff]|\d\d?"
    r"|(?i:[b-df-hj-np-tv-xz])[b-df-hj-np-tv-xz]{1,4})\Z"
)
BEFORE_NUMBER = re.compile(WORD_START + r"[^\W\d_]{1,4}\Z")  # Fig. 3, Art. 5
LONGEST_ABBREVIATION = 5  # characters of an abbreviation
PIECE = 1 << 14  # characters
FIRST_LENGTH = 64  # characters


class Span(NamedTuple):
    """Part of a text: the offsets of its first character and after its last one."""

    start: int
    end: int


def split(text: str) -> Iterator[Span]:
    """Yield the sentences in their order, without the white space around them.

    They hold the whole text except white space. Each has a letter or digit, unless its line has
    none.
    """
    for line in LINE.finditer(text):
        yield from split_line(text, *line.span())


def split_line(text: str, start: int, end: int) -> Iterator[Span]:
    last = end  # after the last letter of the line
    while last > start and not LETTER.match(text, last - 1):
        last -= 1
    first = LETTER.search(text, start, last)
    for match in find_ends(text, start, last):
        if first and first.start() < match.start() and ends_sentence(text, match):
            yield trim(text, start, match.end())
            start = match.end()
            first = LETTER.search(text, start, last)
    if text[start:end].strip():
        yield trim(text, start, end)


def find_ends(text: str, start: int, last: int) -> Iterator[re.Match[str]]:
    """Yield the matches of END, searched in pieces: a search of 1 MB would keep the interpreter's
    lock for 0.1 seconds."""
    while start < last:
        stop = min(start + PIECE, last)
        first = FIRST.search(text, start, stop)
        found = END.search(text, first.start(), stop) if first else None
        if found is None:
            start = stop if stop == last else stop - 1  # a mark may have two characters
        elif match := END.match(text, found.start(), last):  # it may go on behind the piece
            yield match
            start = match.end()
        else:
            start = found.start() + 1


def trim(text: str, start: int, end: int) -> Span:
    part = text[start:end]
    return Span(end - len(part.lstrip()), start + len(part.rstrip()))


def ends_sentence(text: str, match: re.Match[str]) -> bool:
    """Return whether a sentence ends with these marks, after which their line has letters."""
    marks, close = match["marks"], match["close"]
    after = text[match.end()]
    stops = bool(STOP.search(marks))
    if CLEAR_MARK.search(marks) or (CHINESE_JAPANESE.match(after) and not stops):
        return not COMMA.match(after) and not (close and after.isalnum())
    if not after.isspace():
        return False
    skipped = NO_LETTERS.match(text, match.end())
    following = text[skipped.end()] if skipped else after
    if following.islower() and (close or stops):
        return False  # etc. and so on; "Really?" he asked
    return marks != "." or not is_abbreviation(text, match.start(), following)


def is_abbreviation(text: str, stop: int, following: str) -> bool:
    """Return whether the word before this full stop looks shortened."""
    since = max(0, stop - LONGEST_ABBREVIATION)
    if ABBREVIATION.search(text, since, stop):
        return True
    return following.isdigit() and bool(BEFORE_NUMBER.search(text, since, stop))


def cut(text: str, sentence: Span, fits: Callable[[Span], bool]) -> Iterator[Span]:
    """Split a sentence that does not fit. The first part ends after the last clause mark, else
    before the last space, up to which the text fits. The rest is split likewise.

    If there is no such place, the last part does not fit.
    """
    if fits(sentence):
        yield sentence
        return
    start, end = sentence
    while (stop := end_of_search(start, end, fits)) is not None:
        clauses = [each.end() for each in CLAUSE.finditer(text, start, stop)]
        spaces = [each.start() for each in SPACE.finditer(text, start, stop)]
        last = last_fitting(sorted({*clauses, *spaces}), start, fits)
        if last is None:
            break
        place = next((each for each in reversed(clauses) if each <= last), last)
        yield Span(start, place)
        after = SPACE.match(text, place, end)
        start = after.end() if after else place
    yield Span(start, end)


def end_of_search(start: int, end: int, fits: Callable[[Span], bool]) -> int | None:
    """Return a place up to which the text does not fit; None if all of it fits.

    Parts are tried in growing lengths: to try, or to search, the whole rest for each part would
    take quadratic time.
    """
    length = FIRST_LENGTH
    while start + length < end:
        if not fits(Span(start, start + length)):
            return min(start + 2 * length, end)  # a part that ends within a word may take more
        length *= 2
    return None if fits(Span(start, end)) else end


def last_fitting(places: Sequence[int], start: int, fits: Callable[[Span], bool]) -> int | None:
    """Return the last of these places such that the text from `start` up to it fits.

    Parts are tried in growing lengths, as in `end_of_search`.
    """

    def too_long(place: int) -> bool:
        return not fits(Span(start, place))

    first = low = high = bisect_right(places, start)
    step = 1
    while high < len(places) and not too_long(places[high]):
        low, high, step = high, high + step, 2 * step
    failing = bisect_left(places, True, low, min(high, len(places)), key=too_long)
    return places[failing - 1] if failing > first else None


def replace(text: str, spans: Sequence[Span], targets: Iterable[str]) -> str:
    """Return the text with the target of each sentence in its place."""
    ends = [0, *(span.end for span in spans)]
    gaps = [text[end : span.start] for end, span in zip(ends, spans, strict=False)]
    joined = [gap + target for gap, target in zip(gaps, targets, strict=True)]
    return "".join(joined) + text[ends[-1] :]
