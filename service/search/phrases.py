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

REMEMBERED_STATES = 1 << 10  # states whose tokens and rest are kept
REMEMBERED_TOKENS = 1 << 14  # of a vocabulary, of which it is known whether they end a word
LETTERS = "LMN"  # categories of Unicode: letters, their marks, numbers
Decode = Callable[[Sequence[int]], str]


class Phrase(NamedTuple):
    """Tokens of a phrase. With `starts_word` they count only where no letter or digit precedes."""

    ids: tuple[int, ...]
    starts_word: bool = False


class Requirement(NamedTuple):
    """Phrases of which a target must contain one; `asked` is what the request says."""

    asked: str | tuple[str, ...]
    phrases: tuple[Phrase, ...]


class State(NamedTuple):
    """What the tokens so far mean for the phrases."""

    node: int  # of the automaton: the longest end of the tokens that begins a phrase
    met: int  # a bit for each item
    after_word: bool


class Effects(NamedTuple):
    """How many tokens may still be needed after each token, as `_count_remaining` counts them."""

    lacking: dict[int, int]  # after the tokens that go on with a phrase, or begin one
    otherwise: int  # after any other token
    advancing: list[int]  # tokens after which less is needed than before
    remaining: int  # before them


def is_spaced_letter(character: str) -> bool:
    """Return whether a character is a letter or digit of a script with spaces between words."""
    is_letter = unicodedata.category(character)[0] in LETTERS
    return is_letter and not WITHOUT_SPACES.match(character)


@lru_cache(REMEMBERED_TOKENS)
def ends_word(decode: Decode, token_id: int) -> bool:
    """Return whether the text of a token ends in a letter or digit of a spaced script."""
    text = decode([token_id])
    return bool(text) and is_spaced_letter(text[-1])


class Phrases:
    """The automaton of the items of one request."""

    def __init__(self, items: Sequence[Requirement], decode: Decode) -> None:
        """`decode` returns the text of ids."""
        self._items = range(len(items))
        self._longest = [max(len(phrase.ids) for phrase in item.phrases) for item in items]
        self._has_starts = any(phrase.starts_word for item in items for phrase in item.phrases)
        self._decode = decode
        # Of each node: the next by token, where no letter or digit precedes and where one does
        self._edges: list[tuple[dict[int, int], dict[int, int]]] = []
        self._fails: list[int] = []  # of each node: that of its longest end that begins a phrase
        self._ends: list[int] = []  # of each node: a bit for each item that is met there
        self._left: list[dict[int, int]] = []  # of each node: fewest tokens that an item lacks
        self._add_node()
        self._moves = lru_cache(REMEMBERED_STATES)(self._find_moves)
        self._remaining = lru_cache(REMEMBERED_STATES)(self._count_remaining)
        self.effects = lru_cache(REMEMBERED_STATES)(self._find_effects)
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
        node = self._moves(state.node, state.after_word).get(token_id, 0)
        return State(node, state.met | self._ends[node], self._ends_word(token_id))

    def unmet(self, state: State) -> tuple[int, ...]:
        return tuple(number for number in self._items if not state.met >> number & 1)

    def _find_moves(self, node: int, after_word: bool) -> dict[int, int]:
        """Return the nodes after the tokens that go on with a phrase, or begin one."""
        ways = [self._edges[node][after_word]]
        while node:
            node = self._fails[node]
            ways.append(self._edges[node][after_word])
        return {token: child for way in reversed(ways) for token, child in way.items()}

    def _count_remaining(self, node: int, met: int) -> int:
        """Return a number of tokens that suffice to meet all items: 0 if they are met.

        It sums the longest phrase of each item that is not met, less the part of it that is there
        already if the last tokens begin one.
        """
        needed = sum(self._longest[number] for number in self._items if not met >> number & 1)
        return needed - max(
            (
                self._longest[number] - left
                for number, left in self._left[node].items()
                if not met >> number & 1
            ),
            default=0,
        )

    def _find_effects(self, state: State) -> Effects:
        node, met, after_word = state
        remaining, otherwise = self._remaining(node, met), self._remaining(0, met)
        lacking = {
            token: self._remaining(child, met | self._ends[child])
            for token, child in self._moves(node, after_word).items()
        }
        advancing = sorted(token for token, after in lacking.items() if after < remaining)
        return Effects(lacking, otherwise, advancing, remaining)

    def _places(self, phrase: Phrase) -> tuple[bool, ...]:
        """Return whether a letter or digit may precede a phrase: true, false or both."""
        return (False, True) if self._has_starts and not phrase.starts_word else (False,)

    def _add_node(self) -> int:
        self._edges.append(({}, {}))
        self._fails.append(0)
        self._ends.append(0)
        self._left.append({})
        return len(self._edges) - 1

    def _add(self, number: int, ids: Sequence[int], after_word: bool) -> None:
        node = 0
        for left, token_id in zip(reversed(range(len(ids))), ids, strict=True):
            children = self._edges[node][after_word]
            if token_id not in children:
                children[token_id] = self._add_node()
            node = children[token_id]
            self._left[node][number] = min(left, self._left[node].get(number, left))
            after_word = self._ends_word(token_id)
        self._ends[node] |= 1 << number

    def _link(self) -> None:
        """Set what each node takes over from its ends, in the order of their lengths."""
        waiting = deque([0])
        while waiting:
            node = waiting.popleft()
            for after_word, children in enumerate(self._edges[node]):
                for token_id, child in children.items():
                    waiting.append(child)
                    if node:
                        self._take_over(child, self._find_end(node, token_id, after_word))

    def _find_end(self, node: int, token_id: int, after_word: int) -> int:
        """Return the node of the longest end of a node and a token that begins a phrase."""
        while node:
            node = self._fails[node]
            if token_id in self._edges[node][after_word]:
                return self._edges[node][after_word][token_id]
        return 0

    def _take_over(self, node: int, end: int) -> None:
        self._fails[node] = end
        self._ends[node] |= self._ends[end]
        left = self._left[node]
        for number, lacking in self._left[end].items():
            left[number] = min(lacking, left.get(number, lacking))

    def _ends_word(self, token_id: int) -> bool:
        return self._has_starts and ends_word(self._decode, token_id)
