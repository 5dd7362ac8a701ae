"""One thread that encodes, decodes and attends for a bundle, with a cache of its own."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import structlog

from service.arrays import FloatArray
from service.attention import AttentionKind as AttentionKind
from service.bundle import Manifest
from service.engine.batch import Batch, BatchKey
from service.engine.messages import Entry
from service.engine.queue import Queue
from service.engine.scheduler import Scheduler
from service.errors import PassFailed, Unavailable
from service.runtime.cache import CrossCache
from service.runtime.session import Session
from service.search.protocol import Detokenize

log = structlog.get_logger()


@dataclass(slots=True)
class DecodedEntry:
    """An entry that waits for a pass over its targets; `cross` is what cross-attention reads."""

    entry: Entry
    cross: CrossCache


Attended = tuple[DecodedEntry, list[int], dict[AttentionKind, FloatArray]]  # a target, its weights


class Worker:
    """Newcomers join its rows between two steps; rows that have ended leave at once."""

    def __init__(
        self,
        number: int,
        session: Session,
        manifest: Manifest,
        scheduler: Scheduler,
        queue: Queue,
        text: Detokenize,
    ) -> None:
        self.busy_since: float | None = None  # when this iteration began; None while it waits
        self._number = number
        self._session = session
        self._manifest = manifest
        self._scheduler = scheduler
        self._queue = queue
        self._text = text
        self._batches: dict[BatchKey, Batch] = {}
        self._decoded: list[DecodedEntry] = []

    def run(self) -> None:
        newcomers: list[Entry] | None = []
        try:
            while (newcomers := self._next()) is not None:
                self.busy_since = time.monotonic()
                if self._decoded:
                    sizes = [one.entry.attended for one in self._decoded]
                    count = self._scheduler.one_pass(sizes, delays=bool(self._running))
                    some = self._decoded[:count]
                    self._try([one.entry for one in some], partial(self._force, some))
                elif newcomers:
                    self._try(newcomers, partial(self._encode, newcomers))
                for kind, batch in [*self._batches.items()]:
                    if batch.live:
                        entries = [live.entry for live in batch.live]
                        self._try(entries, partial(self._step, batch), kind)
                    elif kind.width > 1:
                        del self._batches[kind]  # or each width would keep memory of its own
        finally:  # nothing is left by now, unless this worker is dying
            held = [*(newcomers or []), *self._running, *(one.entry for one in self._decoded)]
            left = [*held, *self._queue.leave(self._number)]
            gone = Unavailable(f"model {self._manifest.name} has lost a worker; try again")
            for entry in left:
                entry.finish(gone)

    @property
    def rows(self) -> int:
        """Being decoded."""
        return sum(entry.rows for entry in self._running)

    @property
    def _running(self) -> list[Entry]:
        return [live.entry for batch in [*self._batches.values()] for live in batch.live]

    def _next(self) -> list[Entry] | None:
        """What to encode; waits for it where there is nothing else to do."""
        running = self._running
        if abandoned := [entry for entry in running if entry.abandoned]:
            self._drop(abandoned)
            running = self._running
        self._decoded = [one for one in self._decoded if not one.entry.abandoned]
        if self._decoded:
            self._queue.occupy(self._number)
            return []
        if not running:
            self.busy_since = None
        return self._queue.take(self._number, running, busy=bool(running))

    def _drop(self, entries: Sequence[Entry]) -> None:
        for batch in self._batches.values():
            batch.drop(entries)

    def _try(
        self, entries: list[Entry], work: Callable[[], None], kind: BatchKey | None = None
    ) -> None:
        """Where a batch is at work and it fails, it is thrown away with its entries."""
        try:
            work()
        except Exception as error:  # whatever broke, these clients must hear of it and no others
            log.exception("pass failed", entries=len(entries))
            failure = PassFailed(f"the model failed on this batch: {type(error).__name__}")
            for entry in entries:
                entry.finish(failure)
            self._decoded = [one for one in self._decoded if one.entry not in entries]
            if kind:
                self._batches.pop(kind, None)

    def _join(self, kind: BatchKey, entries: list[Entry], cross: CrossCache) -> None:
        """What breaks while rows join may have broken the rows that are there."""
        if kind not in self._batches:
            start_ids, eos_id = self._manifest.decoder_start_ids, self._manifest.eos_id
            self._batches[kind] = Batch(self._session, kind, start_ids, eos_id, self._text)
        batch = self._batches[kind]
        held = [*(live.entry for live in batch.live), *entries]
        self._try(held, partial(batch.join, entries, cross), kind)

    def _encode(self, entries: list[Entry]) -> None:
        started = time.monotonic()
        memory, cross = self._session.encode([entry.source_ids for entry in entries])
        ended = time.monotonic()
        joining: dict[BatchKey, list[int]] = {}  # places in the batch
        for i, entry in enumerate(entries):
            entry.answer.seconds = {"queue": started - entry.arrived, "encode": ended - started}
            if entry.search:
                kind = BatchKey(entry.rows, beams=entry.search.beam_size > 1)
                joining.setdefault(kind, []).append(i)
            elif entry.is_forced:
                self._decoded.append(DecodedEntry(entry, cross.pick([i])))
            else:
                entry.answer.memory = memory[i]
                entry.finish(entry.answer)
        for kind, places in joining.items():
            whole = len(places) == len(entries)
            theirs = cross if whole else cross.pick(places)
            self._join(kind, [entries[i] for i in places], theirs)

    def _step(self, batch: Batch) -> None:
        for entry, cross in batch.step():
            if cross is None:
                entry.finish(entry.answer)
            else:
                self._decoded.append(DecodedEntry(entry, cross))

    def _force(self, some: list[DecodedEntry]) -> None:
        """A pass over whole targets: weights of what was decoded, or given, as they were at each
        step; log-probs of what was given."""
        started = time.monotonic()
        for one in some:
            one.entry.answer.attention = [{} for _ in one.entry.targets]
        self._attend_sources([one.entry for one in some])
        self._attend_targets(some)
        self._score([one for one in some if one.entry.scores])
        del self._decoded[: len(some)]
        for one in some:
            stage = "score" if one.entry.scores else "attention"
            one.entry.answer.seconds[stage] = time.monotonic() - started
            one.entry.finish(one.entry.answer)

    def _score(self, some: list[DecodedEntry]) -> None:
        if not some:
            return
        start_ids = self._manifest.decoder_start_ids
        targets = [np.array([*start_ids[1:], *one.entry.target_ids]) for one in some]
        inputs = [np.array([start_ids[0], *target[:-1]]) for target in targets]
        log_probs = self._session.score(inputs, targets, [one.cross for one in some])
        for one, each in zip(some, log_probs, strict=True):
            one.entry.answer.log_probs = each[len(start_ids) - 1 :]

    def _attend_sources(self, entries: list[Entry]) -> None:
        wanted = [entry for entry in entries if "encoder" in entry.selection.layers]
        if not wanted:
            return
        weights = self._session.encoder_attention([entry.source_ids for entry in wanted])
        for entry, all_layers in zip(wanted, weights, strict=True):
            picked = entry.selection.pick("encoder", all_layers)
            for attention in entry.answer.attention:
                attention["encoder"] = picked

    def _attend_targets(self, some: list[DecodedEntry]) -> None:
        """In as many passes as hold all the hypotheses."""
        wanted = [one for one in some if one.entry.selection.layers.keys() - {"encoder"}]
        rows = [
            (one, target, attention)
            for one in wanted
            for target, attention in zip(one.entry.targets, one.entry.answer.attention, strict=True)
        ]
        while rows:
            sizes = [one.entry.positions(target) for one, target, _ in rows]
            count = self._scheduler.one_pass(sizes, delays=False)
            self._attend(rows[:count])
            rows = rows[count:]

    def _attend(self, rows: list[Attended]) -> None:
        start_ids = self._manifest.decoder_start_ids
        inputs = [
            np.array([*start_ids, *one.entry.prefix, *target[:-1]]) for one, target, _ in rows
        ]
        weights = self._session.attention(inputs, [one.cross for one, _, _ in rows])
        for (one, target, attention), (decoder, cross) in zip(rows, weights, strict=True):
            selection = one.entry.selection
            first = len(start_ids) + len(one.entry.prefix) - 1  # this row predicts the first token
            steps = selection.steps(len(target))
            wanted_rows = slice(first + steps.start, first + steps.stop)
            if "decoder" in selection.layers:
                attention["decoder"] = selection.pick("decoder", decoder, wanted_rows)
            if "cross" in selection.layers:
                attention["cross"] = selection.pick("cross", cross, wanted_rows)
