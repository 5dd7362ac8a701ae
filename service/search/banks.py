"""Share out the beams of a source while phrases are missing (docs/adr/0029).

Beams with as many tokens left to meet all phrases form a bank, and beams compete within their bank
(dynamic beam allocation, Post and Vilar 2018; by rounds as Hu et al. 2019). Otherwise those that
have begun a phrase, and so have said what the model did not want to say, would lose to the others.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from operator import itemgetter

from service.search.phrases import Phrases, State
from service.search.protocol import DEAD, Beam, Candidates

Continuation = tuple[float, int, int, float]  # the fields of a Beam, which takes longer to make


def best_continuations(
    candidates: Candidates,
    first_row: int,
    totals: Sequence[float],
    count: int,
    needed: Sequence[Sequence[int]],
) -> list[Continuation]:
    """Return the `count` best continuations of each row (W,) of a source, and those by the tokens
    that it needs, best first."""
    assert candidates.logits is not None  # the search asked for them
    found: list[Continuation] = []
    rows = slice(first_row, first_row + len(totals))
    ids, log_probs = candidates.ids[rows, :count], candidates.log_probs[rows, :count]
    logit = candidates.logits[rows].item  # of a row and a token
    lists = zip(totals, ids.tolist(), log_probs.tolist(), needed, strict=True)
    # Loops, because they are faster than arrays and comprehensions of so few numbers
    for row, (total, tokens, values, others) in enumerate(lists):
        if total == DEAD:
            continue
        for token, value in zip(tokens, values, strict=True):
            found.append((total + value, row, token, value))
        if others := [token for token in others if token not in tokens]:
            norm = logit(row, tokens[0]) - values[0]
            for token in others:
                value = logit(row, token) - norm
                found.append((total + value, row, token, value))
    found.sort(key=itemgetter(0), reverse=True)
    return found


class Banks:
    """The beams of one source by what they lack."""

    def __init__(self, phrases: Phrases, prefix: Sequence[int], beam_size: int) -> None:
        self._phrases = phrases
        self._beam_size = beam_size  # W
        self._set([phrases.read(prefix)] * beam_size)
        self._would_end = False  # whether the model has wanted to end a target without a phrase
        self._ending: set[int] = set()  # rows that it would end at this step
        self._overdue: set[int] = set()  # rows that it would have ended, as `rivals` says

    def follow(self, beams: Sequence[Beam]) -> bool:
        """Read the token of each row (W,). Return whether a live one still lacks a phrase: once all
        have met all, so do those that continue them."""
        states, late = self._states, self._overdue | self._ending
        self._set([self._phrases.next(states[parent], token) for _, parent, token, _ in beams])
        lacking = {
            row: parent
            for row, (total, parent, _, _) in enumerate(beams)
            if total > DEAD and self._effects[row].remaining
        }
        self._overdue = {row for row, parent in lacking.items() if parent in late}
        return bool(lacking)

    def _set(self, states: list[State]) -> None:
        self._states = states  # (W,)
        self._effects = [*map(self._phrases.effects, states)]  # (W,)

    def advancing(self) -> list[list[int]]:
        """Return the tokens that bring each row (W,) nearer to its phrases."""
        return [effects.advancing for effects in self._effects]

    def lacks(self, beam: Beam) -> int:
        """Return how many tokens a continuation may still need to meet all phrases."""
        effects = self._effects[beam.parent]
        return effects.lacking.get(beam.token_id, effects.otherwise)

    def unmet(self, row: int) -> tuple[int, ...]:
        """Return the numbers of the items that a row lacks."""
        return self._phrases.unmet(self._states[row])

    def unmet_after(self, beam: Beam) -> tuple[int, ...]:
        """Return the numbers of the items that a continuation lacks."""
        return self._phrases.unmet(self._phrases.next(self._states[beam.parent], beam.token_id))

    def rivals(self, totals: Sequence[float]) -> Sequence[float]:
        """Return the totals of the rows, of (W,), for which the search should go on.

        A row does not count if it lacks a phrase and the model would have ended it, or a beam that
        it continues. It would go on up to the limit, since it must not end.
        """
        if not self._overdue:
            return totals
        return [total for row, total in enumerate(totals) if row not in self._overdue]

    def share(
        self, continuations: Sequence[Continuation], room: int, eos_ids: Sequence[int]
    ) -> Iterator[Beam]:
        """Yield continuations in the order in which they get the W rows, endings first.

        They come best first. First the best of each bank gets a row, then the second of each, and
        so on; if rows are too few for a round, those with the best totals get them. `room` is how
        many more tokens the source may get. The nearest bank gets a row in any case once the model
        has wanted to end, or if there is only just room for what it lacks: so all phrases are met
        if there is room, but no earlier than the model finds likely.
        """
        # STEP 1: sort into banks; a continuation must not end before all is met
        rounds: list[list[tuple[int, Continuation]]] = [[] for _ in range(self._beam_size)]
        banks: dict[int, int] = {}  # how many continuations each has, by what it lacks
        # With their rank among those that have met all
        endings: list[tuple[int, Continuation]] = []
        self._ending.clear()
        lacks = [(effects.lacking.get, effects.otherwise) for effects in self._effects]
        for rank, beam in enumerate(continuations):
            total, parent, token_id, _ = beam
            if total == DEAD:
                break
            look_up, otherwise = lacks[parent]
            lacking = look_up(token_id, otherwise)
            place = banks.get(lacking, 0)
            if token_id not in eos_ids:
                banks[lacking] = place + 1
                if place < self._beam_size:
                    rounds[place].append((lacking, beam))
            elif not lacking:
                endings.append((len(endings) + place, beam))
            elif all(other != parent for _, other, _, _ in continuations[:rank]):
                self._ending.add(parent)
                self._would_end |= not rank
        # STEP 2: one of each bank in turn
        ranked = [*chain.from_iterable(rounds)]
        if banks:
            self._place_nearest(ranked, min(banks), room)
        taken = [lacking for lacking, _ in ranked[: self._beam_size]]
        # STEP 3: endings count as if the bank without lack were a beam search of its own, of its
        # rows and of those that nothing takes
        rows = max(1, taken.count(0) + self._beam_size - len(taken))
        best_endings = (beam for rank, beam in endings if rank < rows)
        return (Beam(*beam) for beam in chain(best_endings, (beam for _, beam in ranked)))

    def _place_nearest(
        self, ranked: list[tuple[int, Continuation]], nearest: int, room: int
    ) -> None:
        """Give a continuation of the nearest bank one of the first W places, if it must have a row.
        Each comes with what it lacks."""
        taken = [lacking for lacking, _ in ranked[: self._beam_size]]
        if nearest not in taken and (self._would_end or min(taken) > room):
            best = next(place for place, (lacking, _) in enumerate(ranked) if lacking == nearest)
            ranked.insert(self._beam_size - 1, ranked.pop(best))
