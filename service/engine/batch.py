"""Jobs that are decoded together: their rows in a KV cache, and the search over these rows."""

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from service.arrays import FloatArray
from service.bundle.manifest import Manifest
from service.engine.gates import decoder_gates
from service.engine.scheduler import Job
from service.runtime.cache import Cross
from service.runtime.session import Session
from service.search.beam import BeamSearch
from service.search.drafts import DraftedSearch
from service.search.greedy import GreedySearch
from service.search.protocol import Detokenize, Search, Step


class BatchKey(NamedTuple):
    """Jobs can be decoded together if their keys are equal."""

    rows_per_source: int
    beams: bool  # whether the rows are beams, else samples
    shortlisted: bool = False  # whether the rows may have the tokens of their shortlists alone
    drafts: bool = False  # whether each row has a draft
    language: tuple[int, ...] = ()  # ids of that whose list the rows may have tokens of, if any


class Batch:
    """Jobs of one key. The rows of a job lie together, in the order of `jobs`."""

    def __init__(
        self, session: Session, key: BatchKey, manifest: Manifest, detokenize: Detokenize
    ) -> None:
        self.jobs: list[Job] = []  # replaced, never mutated: a step may still use the old list
        self._started: list[float] = []  # when each job joined
        self._rows_per_source = key.rows_per_source
        self._session = session
        self._manifest = manifest
        self._cache = session.new_cache(key.rows_per_source, key.shortlisted, key.language)
        self._search = new_search(key, manifest, detokenize)
        self._tokens = np.zeros(0, np.int64)  # (R,): the token that each row reads next
        self._gates: FloatArray | None = None  # (R, K, L, H); None if no job ablates a head
        self._streams = self._ablates = False  # whether some job does

    @property
    def rows(self) -> int:
        return len(self._tokens)

    def join(self, jobs: Sequence[Job], cross: Cross) -> None:
        """Add jobs, whose encoded sources are in `cross` in the same order."""
        self._cache.insert(cross)
        entries = [job.entry for job in jobs]
        searches = [entry.search for entry in entries if entry.search]
        starts = [self._manifest.start_ids(entry.language) for entry in entries]
        self._search.insert(searches, starts, [entry.source_ids for entry in entries])
        self.jobs = [*self.jobs, *jobs]
        self._started += [time.monotonic()] * len(jobs)
        first = np.repeat([start[0] for start in starts], self._rows_per_source)
        self._tokens = np.concatenate([self._tokens, first])
        self._streams = self._streams or any(entry.streams for entry in entries)
        self._ablates = self._ablates or any(job.ablates_decoder for job in jobs)
        self._set_gates()

    def step(self, *, alone: bool) -> list[Job]:
        """Let every row read a token, and use all cores if the worker is `alone`. Remove and return
        the jobs that have ended."""
        self._tokens, parents, ended = self._advance(alone)
        if self._streams:
            self._report()
        done = [self._collect(i) for i in ended]
        if parents is not None:
            self._cache.reorder(parents)
        self._remove(ended)
        return done

    def _advance(self, alone: bool) -> Step:
        if isinstance(self._search, DraftedSearch):
            return self._advance_drafted(self._search, alone)
        k, logits = self._search.needed
        rows = self._cache, self._tokens
        candidates = self._session.step(*rows, k, logits, self._gates, alone=alone)
        return self._search.advance(candidates)

    def _advance_drafted(self, search: DraftedSearch, alone: bool) -> Step:
        """Let every row read as many tokens as its draft promises, and keep the right ones."""
        read = search.read(self._tokens)  # (R, N)
        candidates = self._session.draft_step(self._cache, read, *search.needed, alone=alone)
        step, counts = search.follow(candidates)
        self._cache.position += counts
        return step

    def _report(self) -> None:
        """Report the progress of the jobs that stream."""
        for i, job in enumerate(self.jobs):
            if job.entry.streams and (progress := self._search.progress(i)):
                job.report(progress)

    def remove(self, jobs: Sequence[Job]) -> None:
        """Remove these jobs, of which some may not be in the batch."""
        gone = {*jobs}
        self._remove([i for i, job in enumerate(self.jobs) if job in gone])

    def _collect(self, source: int) -> Job:
        """Return the job of a source that has ended, with its hypotheses and, if a pass over them
        follows, its cross-attention keys and values."""
        job = self.jobs[source]
        job.answer.hypotheses = self._search.hypotheses(source)
        job.answer.seconds["decode"] = time.monotonic() - self._started[source]
        if job.needs_teacher_forcing:
            job.cross = self._cache.cross(source)
        return job

    def _remove(self, sources: list[int]) -> None:
        """Remove sources by moving the last ones into their places: this copies the fewest rows."""
        if not sources:
            return
        gone, count = set(sources), len(self.jobs) - len(sources)
        kept = [*range(count)]
        moved = (i for i in range(count, len(self.jobs)) if i not in gone)
        for gap in filter(lambda i: i < count, sources):
            kept[gap] = next(moved)
        keep = np.array(kept, np.int64)
        self._cache.compact(keep)
        self._search.compact(keep)
        self._tokens = self._tokens.reshape(-1, self._rows_per_source)[keep].ravel()
        self.jobs = [self.jobs[i] for i in kept]
        self._started = [self._started[i] for i in kept]
        self._streams = self._streams and any(job.entry.streams for job in self.jobs)
        self._set_gates()

    def _set_gates(self) -> None:
        """Let all rows go through gates if one of them needs it: with gates of 1, a row's numbers
        are the same (docs/adr/0028)."""
        if not self._ablates:
            return
        self._ablates = any(job.ablates_decoder for job in self.jobs)
        self._gates = None
        if self._ablates:
            gates = decoder_gates([job.entry for job in self.jobs], self._manifest.config)
            self._gates = np.repeat(gates, self._rows_per_source, 0)


def new_search(key: BatchKey, manifest: Manifest, detokenize: Detokenize) -> Search:
    if key.drafts:
        return DraftedSearch(manifest.eos_ids, detokenize)
    search = BeamSearch if key.beams else GreedySearch
    return search(key.rows_per_source, manifest.eos_ids, detokenize)
