"""Phrases that a target must contain, and how much of them its tokens hold.

All phrases of a request make one automaton (Aho and Corasick 1975), which reads a token at a time.
So phrases may overlap, begin alike or lie in each other, and one that breaks off goes on as the
beginning of another if it can.
"""

import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from service.text.words import WITHOUT_SPACES

Symbol = tuple[int, bool]  # a token, and whether it follows a letter or a digit

REMEMBERED = 1 << 10  # states whose tokens and rest are kept
LETTERS = "LMN"  # categories of Unicode: letters, their marks, numbers


class Phrase(NamedTuple):
    """Tokens of a phrase. With `starts_word` they count only where no letter or digit precedes."""

    ids: tuple[int, ...]
    starts_word: bool = False


class Item(NamedTuple):
    """Phrases of which a target must contain one; `asked` is what the request says."""

    asked: str | tuple[str, ...]
    phrases: tuple[Phrase, ...]


class State(NamedTuple):
    """What the tokens so far mean for the phrases."""

    node: int  # of the automaton: the longest end of the tokens that begins a phrase
    met: int  # a bit for each item
    after_word: bool


class Effects(NamedTuple):
    """How many tokens may still be needed after each token, as `Phrases.remaining` counts them."""

    lacking: dict[int, int]  # after the tokens that go on with a phrase, or begin one
    otherwise: int  # after any other token
    advancing: list[int]  # tokens after which less is needed than before
    remaining: int  # before them


def is_spaced_letter(character: str) -> bool:
    """Return whether a character is a letter or digit of a script with spaces between words."""
    is_letter = unicodedata.category(character)[0] in LETTERS
    return is_letter and not WITHOUT_SPACES.match(character)


class Phrases:
    """The automaton of the items of one request."""

    def __init__(self, items: Sequence[Item], decode: Callable[[Sequence[int]], str]) -> None:
        """`decode` returns the text of ids."""
        self._items = range(len(items))
        self._longest = [max(len(phrase.ids) for phrase in item.phrases) for item in items]
        self._has_starts = any(phrase.starts_word for item in items for phrase in item.phrases)
        self._decode = decode
        self._edges: list[dict[Symbol, int]] = [{}]
        self._fails = [0]  # of each node: that of its longest end that begins a phrase
        self._ends = [0]  # of each node: a bit for each item that is met there
        self._left: list[dict[int, int]] = [{}]  # of each node: fewest tokens that an item lacks
        self._ends_word = lru_cache(REMEMBERED)(self._find_whether_word_ends)
        self.remaining = lru_cache(REMEMBERED)(self._count_remaining)
        self.effects = lru_cache(REMEMBERED)(self._find_effects)
        for number, item in enumerate(items):
            for phrase in item.phrases:
                for after_word in self._places(phrase):
                    self._add(number, phrase.ids, after_word)
        self._link()

    def read(self, token_ids: Iterable[int]) -> State:
        """Return the state after the first tokens of a target."""
        state = State(0, 0, False)
        for token_id in token_ids:
            state = self.next(state, token_id)
        return state

    def next(self, state: State, token_id: int) -> State:
        node, symbol = state.node, (token_id, state.after_word)
        while node and symbol not in self._edges[node]:
            node = self._fails[node]
        node = self._edges[node].get(symbol, 0)
        return State(node, state.met | self._ends[node], self._ends_word(token_id))

    def unmet(self, state: State) -> tuple[int, ...]:
        return tuple(number for number in self._items if not state.met >> number & 1)

    def _count_remaining(self, state: State) -> int:
        """Return a number of tokens that suffice to meet all items: 0 if they are met.

        It sums the longest phrase of each item that is not met, less the part of it that is there
        already if the last tokens begin one.
        """
        unmet, left = self.unmet(state), self._left[state.node]
        held = (self._longest[number] - left[number] for number in unmet if number in left)
        return sum(self._longest[number] for number in unmet) - max(held, default=0)

    def _find_effects(self, state: State) -> Effects:
        node, tokens = state.node, {token for token, _ in self._edges[state.node]}
        while node:
            node = self._fails[node]
            tokens |= {token for token, _ in self._edges[node]}
        lacking = {token: self.remaining(self.next(state, token)) for token in sorted(tokens)}
        remaining = self.remaining(state)
        advancing = [token for token, after in lacking.items() if after < remaining]
        otherwise = self.remaining(State(0, state.met, False))
        return Effects(lacking, otherwise, advancing, remaining)

    def _places(self, phrase: Phrase) -> tuple[bool, ...]:
        """Return whether a letter or digit may precede a phrase: true, false or both."""
        return (False, True) if self._has_starts and not phrase.starts_word else (False,)

    def _add(self, number: int, ids: Sequence[int], after_word: bool) -> None:
        node = 0
        for place, token_id in enumerate(ids):
            symbol = token_id, after_word
            if symbol not in self._edges[node]:
                self._edges[node][symbol] = len(self._edges)
                self._edges.append({})
                self._fails.append(0)
                self._ends.append(0)
                self._left.append({})
            node = self._edges[node][symbol]
            left = len(ids) - place - 1
            self._left[node][number] = min(left, self._left[node].get(number, left))
            after_word = self._ends_word(token_id)
        self._ends[node] |= 1 << number

    def _link(self) -> None:
        """Set what each node takes over from its ends, in the order of their lengths."""
        waiting = deque(self._edges[0].values())
        while waiting:
            node = waiting.popleft()
            for symbol, child in self._edges[node].items():
                end = self._fails[node]
                while end and symbol not in self._edges[end]:
                    end = self._fails[end]
                end = self._edges[end].get(symbol, 0)
                self._fails[child] = end
                self._ends[child] |= self._ends[end]
                for number, left in self._left[end].items():
                    self._left[child][number] = min(left, self._left[child].get(number, left))
                waiting.append(child)

    def _find_whether_word_ends(self, token_id: int) -> bool:
        text = self._decode([token_id]) if self._has_starts else ""
        return bool(text) and is_spaced_letter(text[-1])
