"""One thread that encodes, decodes and scores entries of a model, with KV caches of its own."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from service.arrays import FloatArray
from service.attention import AttentionKind
from service.bundle.manifest import Manifest
from service.engine.batch import Batch, BatchKey
from service.engine.queue import Queue
from service.engine.scheduler import PassSize, Scheduler
from service.errors import Unavailable
from service.logs import log_error
from service.runtime.cache import CrossCache
from service.runtime.session import Session
from service.search.protocol import Detokenize
from service.wire.messages import Answer, Entry, Steps, as_failure


@dataclass(slots=True)
class DecodedEntry:
    """An entry whose targets are complete and wait for teacher forcing; `cross` holds
    the cross-attention keys and values of its source."""

    entry: Entry
    cross: CrossCache


@dataclass(slots=True)
class AttentionRow:
    """One target of an entry, and the dict to which a pass writes its attention."""

    decoded: DecodedEntry
    target: list[int]
    weights: dict[AttentionKind, FloatArray]

    @property
    def positions(self) -> int:
        return self.decoded.entry.pass_positions(self.target)


class Worker:
    """The loop of one thread: new entries join between two steps, finished ones leave at once."""

    def __init__(
        self,
        number: int,
        session: Session,
        manifest: Manifest,
        scheduler: Scheduler,
        queue: Queue,
        detokenize: Detokenize,
    ) -> None:
        self.busy_since: float | None = None  # when this iteration began; None while it waits
        self.steps = Steps()
        self._number = number
        self._session = session
        self._manifest = manifest
        self._scheduler = scheduler
        self._queue = queue
        self._detokenize = detokenize
        self._batches: dict[BatchKey, Batch] = {}
        self._decoded: list[DecodedEntry] = []
        self._to_repeat: list[Entry] = []  # each by itself, since a pass with others failed
        self._repeated: Entry | None = None  # the one of them that is computed now

    def run(self) -> None:
        """Work until the queue is closed and empty.

        If the loop raises, every entry that the worker holds gets Unavailable, and the error
        propagates.
        """
        newcomers: list[Entry] | None = []
        try:
            while (newcomers := self._next()) is not None:
                self.busy_since = time.monotonic()
                if self._decoded:
                    self._teacher_force_some()
                elif newcomers:
                    self._guard(newcomers, partial(self._encode, newcomers))
                self._step_all()
        finally:  # nothing is left by now, unless this worker is dying
            self._fail_all(newcomers or [])

    @property
    def rows(self) -> int:
        """Rows that are being decoded; may be read on any thread."""
        return sum(entry.rows for entry in self._running)

    @property
    def _running(self) -> list[Entry]:
        return [entry for batch in [*self._batches.values()] for entry in batch.entries]

    def _next(self) -> list[Entry] | None:
        """Return the entries to encode next, or None when there will be no more.

        Waits for them if there is nothing else to do.
        """
        self._remove_abandoned()
        running = self._running
        if self._decoded:
            self._queue.occupy(self._number)
            return []
        if self._to_repeat or self._repeated:
            self._queue.occupy(self._number)
            return self._next_to_repeat(running)
        if not running:
            self.busy_since = None
        return self._queue.take(self._number, running, busy=bool(running))

    def _next_to_repeat(self, running: Sequence[Entry]) -> list[Entry]:
        """Return an entry to compute by itself, once nothing else is being computed."""
        if self._repeated or running:
            return []
        self._repeated = self._to_repeat.pop(0)
        return [self._repeated]

    def _remove_abandoned(self) -> None:
        """Remove entries that were cancelled, or that failed while they were encoded or scored."""
        for key, batch in [*self._batches.items()]:
            if abandoned := [entry for entry in batch.entries if entry.abandoned]:
                self._guard(batch.entries, partial(batch.remove, abandoned), key)
        self._decoded = [one for one in self._decoded if not one.entry.abandoned]
        self._to_repeat = [entry for entry in self._to_repeat if not entry.abandoned]
        if self._repeated and self._repeated.abandoned:  # or it has its answer
            self._repeated = None

    def _step_all(self) -> None:
        for key, batch in [*self._batches.items()]:
            if batch.entries:
                self._guard(batch.entries, partial(self._step, batch), key)
            elif key.rows_per_source > 1:
                del self._batches[key]  # else each number of rows would keep a cache

    def _teacher_force_some(self) -> None:
        """Run teacher forcing for as many entries as a pass may hold now."""
        sizes = [one.entry.pass_size for one in self._decoded]
        count = self._scheduler.one_pass(sizes, delays=bool(self._running))
        some = self._decoded[:count]
        self._guard([one.entry for one in some], partial(self._teacher_force, some))

    def _guard(
        self, entries: Sequence[Entry], work: Callable[[], None], key: BatchKey | None = None
    ) -> None:
        """Do `work`. If it raises, discard the batch it was changing, and repeat each entry by
        itself, so that a bad one fails alone. Those that were alone already fail."""
        try:
            work()
        except Exception as error:  # noqa: BLE001  the clients must hear of whatever broke
            if key:
                self._batches.pop(key, None)
            repeated = self._queue_repeats(entries)
            counts = {"entries": len(entries), "repeated": len(repeated)}
            asked = sorted({entry.request_id for entry in entries})
            name = self._manifest.name
            try:
                log_error("pass failed", model=name, **counts, request_ids=asked, exc_info=error)
            finally:  # even if there is no memory for the line
                failure = as_failure(error)
                for entry in entries:
                    if entry not in repeated:
                        entry.finish(failure)

    def _queue_repeats(self, entries: Sequence[Entry]) -> list[Entry]:
        """Queue entries to be computed again, one at a time, and return them. Skip an entry that
        was alone in the pass, that is abandoned, or whose tokens were already streamed."""
        if len(entries) == 1:
            return []
        chosen = [entry for entry in entries if not (entry.abandoned or entry.reported)]
        self._decoded = [one for one in self._decoded if one.entry not in chosen]
        for entry in chosen:
            entry.answer = Answer()
        self._to_repeat += chosen
        return chosen

    def _fail_all(self, newcomers: Sequence[Entry]) -> None:
        """Fail the entries that this worker holds and, if it is the last, those that wait."""
        decoded = [one.entry for one in self._decoded]
        held = [*newcomers, *self._running, *decoded, *self._to_repeat]
        left = [*held, *self._queue.leave(self._number)]
        failure = Unavailable(f"model {self._manifest.name} has lost a worker; try again")
        for entry in left:
            entry.finish(failure)

    def _encode(self, entries: Sequence[Entry]) -> None:
        """Encode sources; then each entry joins a batch, waits for teacher forcing, or is done."""
        started = time.monotonic()
        memory, cross = self._session.encode([entry.source_ids for entry in entries])
        ended = time.monotonic()
        joining: dict[BatchKey, list[int]] = {}  # places in `entries`
        for i, entry in enumerate(entries):
            entry.answer.seconds = {"queue": started - entry.arrived, "encode": ended - started}
            if entry.search:
                key = BatchKey(entry.rows, beams=entry.search.beam_size > 1)
                joining.setdefault(key, []).append(i)
            elif entry.needs_teacher_forcing:
                self._decoded.append(DecodedEntry(entry, cross.pick([i])))
            else:
                entry.answer.memory = memory[i]
                entry.finish(entry.answer)
        for key, places in joining.items():
            joining_now = [entries[i] for i in places]
            there = self._batches[key].entries if key in self._batches else []
            # A failure may damage the KV cache of the entries already there.
            join = partial(self._join, key, joining_now, cross, places)
            self._guard([*there, *joining_now], join, key)

    def _join(
        self, key: BatchKey, entries: list[Entry], cross: CrossCache, places: list[int]
    ) -> None:
        """Add entries to the batch of their key; `places` are theirs in `cross`."""
        if key not in self._batches:
            self._batches[key] = Batch(self._session, key, self._manifest, self._detokenize)
        whole = len(places) == len(cross.source_length)
        self._batches[key].join(entries, cross if whole else cross.pick(places))

    def _step(self, batch: Batch) -> None:
        started, rows = time.monotonic(), batch.rows
        ended = batch.step()
        self.steps.observe(time.monotonic() - started, rows)
        for entry, cross in ended:
            if cross is None:
                entry.finish(entry.answer)
            else:
                self._decoded.append(DecodedEntry(entry, cross))

    def _teacher_force(self, some: list[DecodedEntry]) -> None:
        """Run teacher forcing: decoder passes over whole targets, which give the attention of each
        step as it was when the target was decoded, or the log-probs of given targets."""
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
        """Write the log-probs of given targets; those of the start ids are left out."""
        if not some:
            return
        starts = [self._manifest.start_ids(one.entry.language) for one in some]
        pairs = list(zip(starts, (one.entry.target_ids for one in some), strict=True))
        inputs = [np.array([*start, *target[:-1]]) for start, target in pairs]
        targets = [np.array([*start[1:], *target]) for start, target in pairs]
        log_probs = self._session.score(inputs, targets, [one.cross for one in some])
        for one, start, each in zip(some, starts, log_probs, strict=True):
            one.entry.answer.log_probs = each[len(start) - 1 :]

    def _attend_sources(self, entries: list[Entry]) -> None:
        """Write encoder attention; the hypotheses of an entry share it."""
        wanted = [entry for entry in entries if "encoder" in entry.selection.layers]
        if not wanted:
            return
        weights = self._session.encoder_attention([entry.source_ids for entry in wanted])
        for entry, all_layers in zip(wanted, weights, strict=True):
            picked = entry.selection.pick("encoder", all_layers)
            for attention in entry.answer.attention:
                attention["encoder"] = picked

    def _attend_targets(self, some: list[DecodedEntry]) -> None:
        """Write decoder and cross-attention, in as many passes as the targets need."""
        wanted = [one for one in some if one.entry.selection.layers.keys() - {"encoder"}]
        rows = [
            AttentionRow(one, target, weights)
            for one in wanted
            for target, weights in zip(one.entry.targets, one.entry.answer.attention, strict=True)
        ]
        while rows:
            sizes = [PassSize(row.positions, 0) for row in rows]
            count = self._scheduler.one_pass(sizes, delays=False)
            self._attend(rows[:count])
            rows = rows[count:]

    def _attend(self, rows: list[AttentionRow]) -> None:
        before = [
            [*self._manifest.start_ids(row.decoded.entry.language), *row.decoded.entry.prefix]
            for row in rows
        ]
        inputs = [np.array([*ids, *row.target[:-1]]) for ids, row in zip(before, rows, strict=True)]
        computed = self._session.attention(inputs, [row.decoded.cross for row in rows])
        for row, ids, (decoder, cross) in zip(rows, before, computed, strict=True):
            entry = row.decoded.entry
            first = len(ids) - 1  # the position that predicts the first token
            steps = entry.selection.steps(len(row.target))
            wanted = slice(first + steps.start, first + steps.stop)
            if "decoder" in entry.selection.layers:
                row.weights["decoder"] = entry.selection.pick("decoder", decoder, wanted)
            if "cross" in entry.selection.layers:
                row.weights["cross"] = entry.selection.pick("cross", cross, wanted)
