"""Greedy search that reads several tokens of a draft at a step, and keeps those that it would have
chosen itself.

Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023), where a draft
comes from a smaller model; here the request gives it. Axes: R rows, N tokens that a row reads.
"""

import collections.abc as abc
from collections import defaultdict

import numpy as np
from typing_extensions import override

from service.arrays import IntArray
from service.search.greedy import GreedySearch, Sequence
from service.search.options import ABSENT, SearchOptions
from service.search.protocol import Candidates, Detokenize, Hypothesis, Needed, Step

MOST_DRAFTED = 15  # tokens of a row at a step
MOST_TOKENS = 64  # tokens of all rows at a step: with more, they take longer than they save
LEAST_DRAFTED = 2
FIRST_RUN = 8  # tokens that are accepted between two misses, before any is known
KEPT_SHARE = 0.9  # share of what was learned that the next pass leaves
LONGEST_MATCH = 8  # tokens by which places of a draft are compared
ENOUGH = 4  # equal tokens that make any place of a draft credible


class Draft:
    """A draft of one target, and the place in it that the target has reached.

    Its ids end with eos. ABSENT stands for a token that targets lack.
    """

    def __init__(self, ids: tuple[int, ...], prefix: abc.Sequence[int]) -> None:
        """`prefix` is the beginning of the target that the request gives."""
        self.drafted = self.accepted = 0  # tokens
        self._ids = ids
        self._places: defaultdict[int, list[int]] = defaultdict(list)  # after each token
        for place, token in enumerate(ids, 1):
            self._places[token].append(place)
        self._right, self._wrong = float(FIRST_RUN), 1.0  # accepted tokens and misses, lately
        self._failures = 0  # passes that accepted nothing, less what others accepted
        self._agreed = 0  # last tokens of the target that are those before the place
        self._missed: int | None = None  # where the target last left the draft by an unknown token
        self._inserts: bool | None = None  # whether it was additional, if known
        self._place = 0
        for end, token in enumerate(prefix, 1):
            self._read(token, prefix[:end])

    def propose(self, most: int) -> list[int]:
        """Return at most `most` tokens that are expected next: about as many as the target has
        between two misses. Only one if it is not known yet whether the last token, which the draft
        lacks, was additional or replaced one. After failures, none before the target agrees with
        the draft in as many tokens again: in L tokens at most sqrt(2 L) passes fail, about."""
        if most < 1 or self._agreed < self._failures - 1:
            return []
        unsure = self._missed is not None and self._inserts is None
        count = 1 if unsure else max(LEAST_DRAFTED, 1 + round(self._right / self._wrong))
        end = min(self._place + min(most, count), len(self._ids) - 1)  # nothing follows eos
        proposed = [*self._ids[self._place : end]]
        return proposed[: proposed.index(ABSENT)] if ABSENT in proposed else proposed

    def follow(
        self, proposed: abc.Sequence[int], chosen: abc.Sequence[int], target: abc.Sequence[int]
    ) -> None:
        """Take note of the tokens that were chosen when these had been proposed. `target` ends with
        them."""
        accepted = 0
        for token, expected in zip(chosen, proposed, strict=False):
            if token != expected:
                break
            accepted += 1
        self.drafted += len(proposed)
        self.accepted += accepted
        if accepted:
            self._go_on(self._place)
            self._place += accepted
            self._agreed += accepted
        if len(chosen) > accepted:
            self._read(chosen[accepted], target)
        if proposed:
            self._learn(len(proposed), accepted)

    def _learn(self, proposed: int, accepted: int) -> None:
        """Count what was accepted, and failures."""
        self._right = KEPT_SHARE * self._right + accepted
        self._wrong = KEPT_SHARE * self._wrong + (accepted < proposed)
        self._failures = self._failures + 1 if not accepted else max(0, self._failures - accepted)

    def _read(self, token: int, target: abc.Sequence[int]) -> None:
        """Find the place after a token that the model chose by itself, the last one of `target`."""
        place = self._place
        if place < len(self._ids) and self._ids[place] == token:
            self._go_on(place)
            self._place, self._agreed = place + 1, self._agreed + 1
        elif (found := self._find(token, target)) is not None:
            self._go_on(found - 1)
            self._place, self._agreed = found, self._alike(found, target)
        else:
            replaces = self._inserts is False or self._ids[place : place + 1] == (ABSENT,)
            self._place, self._missed = min(place + replaces, len(self._ids)), place
            self._agreed = 0

    def _go_on(self, place: int) -> None:
        """Learn from the place where the target goes on with the draft whether the token before was
        additional."""
        if self._missed is not None and 0 <= place - self._missed <= 1:
            self._inserts = place == self._missed
        self._missed = None

    def _find(self, token: int, target: abc.Sequence[int]) -> int | None:
        """Return the place after this token whose tokens before it are most like the target's, the
        nearest of equals. A place that is further away must be like it in more tokens."""
        best: tuple[int, int] | None = None
        found = None
        for place in self._places.get(token, ()):
            alike, distance = self._alike(place, target), abs(place - 1 - self._place)
            if alike < min(distance, ENOUGH):
                continue
            if best is None or (alike, -distance) > best:
                best, found = (alike, -distance), place
        return found

    def _alike(self, place: int, target: abc.Sequence[int]) -> int:
        count = 0
        while count < min(LONGEST_MATCH, place, len(target)):
            if self._ids[place - count - 1] != target[-count - 1]:
                break
            count += 1
        return count


class DraftedSearch(GreedySearch):
    """The greedy searches of a batch, one row for each source. `read` and `follow` take turns."""

    def __init__(self, eos_ids: abc.Sequence[int], detokenize: Detokenize) -> None:
        super().__init__(1, eos_ids, detokenize)
        self._drafts: list[Draft] = []  # (R,)
        self._given: list[list[int]] = []  # (R,): ids of the prefix that a row reads at this step
        self._proposed: list[list[int]] = []  # (R,): what it reads of its draft then

    @override
    def insert(
        self,
        options: abc.Sequence[SearchOptions],
        starts: abc.Sequence[abc.Sequence[int]],
        sources: abc.Sequence[IntArray],
    ) -> None:
        super().insert(options, starts, sources)
        self._drafts += [Draft(each.draft, each.target_prefix) for each in options]

    @property
    @override
    def needed(self) -> Needed:
        counts: list[int | None] = []
        for sequence, proposed in zip(self._sequences, self._proposed, strict=True):
            if not sequence.rules.plain:
                length = len(sequence.token_ids)
                counts += map(sequence.rules.candidates, range(length, length + len(proposed) + 1))
        return Needed.of(1, counts, any(each.rules.reads_logits for each in self._sequences))

    def read(self, tokens: IntArray) -> IntArray:
        """Return what each row reads (R, N): its next token (R,), and those that are expected
        after it. Rows that expect fewer are filled up."""
        most = max(0, min(MOST_DRAFTED, MOST_TOKENS // len(tokens) - 1))
        self._given = [each.prefix[:most] for each in self._sequences]
        self._proposed = [
            draft.propose(min(most - len(sequence.prefix), sequence.room - 1))
            for sequence, draft in zip(self._sequences, self._drafts, strict=True)
        ]
        expected = [[*two[0], *two[1]] for two in zip(self._given, self._proposed, strict=True)]
        width = 1 + max(map(len, expected))
        if width == 1:
            return tokens[:, None]
        filling = self._eos_ids[0]
        rows = [
            [token, *each, *[filling] * (width - 1 - len(each))]
            for token, each in zip(tokens.tolist(), expected, strict=True)
        ]
        return np.array(rows)

    def follow(self, candidates: Candidates) -> tuple[Step, IntArray]:
        """Choose from the candidates (R x N) of what was read. Return the decision for the next
        step, and how many tokens of each row count as read (R,)."""
        width = len(candidates.ids) // len(self._sequences)
        pairs = [self._follow_row(candidates, row, row * width) for row in range(len(self._drafts))]
        ended = [row for row, each in enumerate(self._sequences) if each.finish_reason]
        tokens, counts = zip(*pairs, strict=True)
        return Step(np.array(tokens), None, ended), np.array(counts)

    def _follow_row(self, candidates: Candidates, row: int, first: int) -> tuple[int, int]:
        """Return the token that a row reads next, and how many of those read it keeps. Its
        candidates begin at `first`."""
        sequence, proposed = self._sequences[row], self._proposed[row]
        before, token, kept = len(sequence.token_ids), -1, 0
        for expected in (*self._given[row], *proposed, None):
            token = self._choose(sequence, candidates, first + kept)
            kept += 1
            if token != expected or sequence.finish_reason:
                break
        chosen = sequence.token_ids[before:]
        if chosen:
            target = [*sequence.options.target_prefix, *sequence.token_ids]
            self._drafts[row].follow(proposed, chosen, target)
        return token, kept

    def _choose(self, sequence: Sequence, candidates: Candidates, place: int) -> int:
        if sequence.prefix or not sequence.rules.plain:
            return self._next_token(sequence, candidates, place)
        token = int(candidates.ids[place, 0])
        sequence.append(token, float(candidates.log_probs[place, 0]), self._eos_ids)
        return token

    @override
    def hypotheses(self, source: int) -> list[Hypothesis]:
        draft = self._drafts[source]
        counts = {"drafted": draft.drafted, "accepted": draft.accepted}
        return [each._replace(**counts) for each in super().hypotheses(source)]

    @override
    def compact(self, keep: IntArray) -> None:
        super().compact(keep)
        self._drafts = [self._drafts[row] for row in keep.tolist()]
