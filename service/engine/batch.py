"""Entries that are decoded together: their rows in a KV cache, and the search over these rows."""

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from service.bundle.manifest import Manifest
from service.runtime.cache import CrossCache
from service.runtime.session import Session
from service.search.beam import BeamSearch
from service.search.greedy import GreedySearch
from service.search.protocol import Detokenize, Search
from service.wire.messages import Entry


class BatchKey(NamedTuple):
    """Entries can be decoded together if their keys are equal."""

    rows_per_source: int
    beams: bool  # whether the rows are beams, else samples


class Batch:
    """Entries of one key. The rows of an entry lie together, in the order of `entries`."""

    def __init__(
        self, session: Session, key: BatchKey, manifest: Manifest, detokenize: Detokenize
    ) -> None:
        self.entries: list[Entry] = []  # replaced, never mutated: a step may still use the old list
        self._started: list[float] = []  # when each entry joined
        self._rows_per_source = key.rows_per_source
        self._session = session
        self._manifest = manifest
        self._cache = session.new_cache(key.rows_per_source)
        search = BeamSearch if key.beams else GreedySearch
        self._search: Search = search(key.rows_per_source, manifest.eos_id, detokenize)
        self._tokens = np.zeros(0, np.int64)  # (R,): the token that each row reads next

    @property
    def rows(self) -> int:
        return len(self._tokens)

    def join(self, entries: Sequence[Entry], cross: CrossCache) -> None:
        """Add entries, whose encoded sources are in `cross` in the same order."""
        self._cache.insert(cross)
        searches = [entry.search for entry in entries if entry.search]
        starts = [self._manifest.start_ids(entry.language) for entry in entries]
        self._search.insert(searches, starts)
        self.entries = [*self.entries, *entries]
        self._started += [time.monotonic()] * len(entries)
        first = np.repeat([start[0] for start in starts], self._rows_per_source)
        self._tokens = np.concatenate([self._tokens, first])

    def step(self) -> list[tuple[Entry, CrossCache | None]]:
        """Let every row read a token, and remove the entries that have ended.

        Returns those entries, each with the cross-attention keys and values of its source if
        attention was asked for.
        """
        candidates = self._session.step(self._cache, self._tokens, *self._search.needed)
        self._tokens, parents, ended = self._search.advance(candidates)
        for i, entry in enumerate(self.entries):
            if entry.streams and (progress := self._search.progress(i)):
                entry.report(progress)
        done = [self._collect(i) for i in ended]
        if parents is not None:
            self._cache.reorder(parents)
        self._remove(ended)
        return done

    def remove(self, entries: Sequence[Entry]) -> None:
        """Remove these entries; those that are not here are ignored."""
        gone = {id(entry) for entry in entries}
        self._remove([i for i, entry in enumerate(self.entries) if id(entry) in gone])

    def _collect(self, source: int) -> tuple[Entry, CrossCache | None]:
        """Write the hypotheses of a source that has ended into its answer."""
        entry = self.entries[source]
        entry.answer.hypotheses = self._search.hypotheses(source)
        entry.answer.seconds["decode"] = time.monotonic() - self._started[source]
        return entry, self._cache.cross(source) if entry.selection.layers else None

    def _remove(self, sources: list[int]) -> None:
        """Remove sources by moving the last ones into their places: this copies the fewest rows."""
        if not sources:
            return
        keep = np.arange(len(self.entries) - len(sources))
        gone = set(sources)
        keep[[i for i in sources if i < len(keep)]] = [
            i for i in range(len(keep), len(self.entries)) if i not in gone
        ]
        self._cache.compact(keep)
        self._search.compact(keep)
        self._tokens = self._tokens.reshape(-1, self._rows_per_source)[keep].ravel()
        self.entries = [self.entries[i] for i in keep]
        self._started = [self._started[i] for i in keep]
