"""Entries that are decoded together: their rows in a cache, and the search that moves them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from service.engine.messages import Entry
from service.runtime.cache import CrossCache
from service.runtime.session import Session
from service.search.beam import BeamSearch
from service.search.greedy import GreedySearch
from service.search.protocol import Detokenize


@dataclass(slots=True)
class Live:
    """An entry whose rows stand in the cache."""

    entry: Entry
    started: float


class BatchKey(NamedTuple):
    """Which entries can be decoded together."""

    width: int
    beams: bool


class Batch:
    """Entries of one kind; the rows of one lie together, in the order of `live`."""

    def __init__(
        self,
        session: Session,
        kind: BatchKey,
        start_ids: Sequence[int],
        eos_id: int,
        text: Detokenize,
    ) -> None:
        self.live: list[Live] = []
        self._session = session
        self._start_id, *forced_ids = start_ids
        self._cache = session.new_cache(kind.width)
        search = BeamSearch if kind.beams else GreedySearch
        self._search = search(kind.width, forced_ids, eos_id, text)
        self._tokens = np.zeros(0, np.int64)  # (R,): what each row reads next

    def join(self, entries: Sequence[Entry], cross: CrossCache) -> None:
        """`cross` is of these entries, in their order."""
        self._cache.insert(cross)
        self._search.insert([entry.search for entry in entries if entry.search])
        now = time.monotonic()
        self.live += [Live(entry, now) for entry in entries]
        starts = np.full(len(entries) * self._cache.rows_per_source, self._start_id)
        self._tokens = np.concatenate([self._tokens, starts])

    def step(self) -> list[tuple[Entry, CrossCache | None]]:
        """Every row reads a token. Returns the entries that have ended, with what cross-attention
        read where they want to see it."""
        candidates = self._session.step(self._cache, self._tokens, *self._search.wanted)
        self._tokens, parents, ended = self._search.advance(candidates)
        for i, live in enumerate(self.live):
            if live.entry.streams and (progress := self._search.progress(i)):
                live.entry.tell(progress)
        done: list[tuple[Entry, CrossCache | None]] = []
        for i in ended:
            entry, started = self.live[i].entry, self.live[i].started
            entry.answer.hypotheses = self._search.hypotheses(i)
            entry.answer.seconds["decode"] = time.monotonic() - started
            done.append((entry, self._cache.cross(i) if entry.selection.layers else None))
        if parents is not None:
            self._cache.reorder(parents)
        self._remove(ended)
        return done

    def drop(self, entries: Sequence[Entry]) -> None:
        """Those of them that are here leave."""
        gone = {id(entry) for entry in entries}
        self._remove([i for i, live in enumerate(self.live) if id(live.entry) in gone])

    def _remove(self, sources: list[int]) -> None:
        """The last ones move into their places."""
        if not sources:
            return
        keep = np.arange(len(self.live) - len(sources))
        gone = set(sources)
        keep[[i for i in sources if i < len(keep)]] = [
            i for i in range(len(keep), len(self.live)) if i not in gone
        ]
        self._cache.compact(keep)
        self._search.compact(keep)
        self._tokens = self._tokens.reshape(-1, self._cache.rows_per_source)[keep].ravel()
        self.live = [self.live[i] for i in keep]
