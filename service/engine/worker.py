"""One thread that encodes, decodes and scores for a model, with KV caches of its own."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from service.arrays import FloatArray, IntArray
from service.attention import AttentionKind, align_steps
from service.bundle.manifest import Manifest
from service.engine.batch import Batch, BatchKey
from service.engine.gates import decoder_gates, encoder_gates
from service.engine.pooling import pool
from service.engine.queue import Queue
from service.engine.scheduler import Job, PassSize, Scheduler, apart, by_length
from service.errors import HeedError, PassFailed, Unavailable
from service.logs import log_error
from service.runtime.cache import Cross
from service.runtime.session import Session
from service.search.options import SearchOptions
from service.search.protocol import Detokenize
from service.wire import Steps

ENOUGH, OF = 8, 4  # jobs to encode at once, or a part of those being decoded if that is fewer


@dataclass(slots=True)
class AttentionRow:
    """One target of a job, and the dict to which a pass writes its attention."""

    job: Job
    target: Sequence[int]
    weights: dict[AttentionKind, FloatArray]

    @property
    def positions(self) -> int:
        return self.job.pass_positions(self.target)

    @property
    def read(self) -> int:
        """Tokens of the target that the decoder reads to predict the next one: all but the last."""
        return max(len(self.target) - 1, 0)

    @property
    def gated(self) -> bool:
        """Return whether the gated graph computes it, which also computes logits."""
        return self.job.ablates_decoder or self.job.entry.selection.measure == "norm"


class Worker:
    """The loop of one thread: new jobs join between two steps, finished ones leave at once."""

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
        self.after_pass: Callable[[], None] = lambda: None  # called on the thread of this worker
        self._number = number
        self._session = session
        self._manifest = manifest
        self._scheduler = scheduler
        self._queue = queue
        self._detokenize = detokenize
        self._encoder_gates = partial(encoder_gates, config=manifest.config)
        self._decoder_gates = partial(decoder_gates, config=manifest.config)
        self._batches: dict[BatchKey, Batch] = {}
        self._held: list[Job] = []  # taken while others waited, to be encoded with them
        self._decoded: list[Job] = []  # they wait for teacher forcing
        self._to_repeat: list[Job] = []  # each by itself, since a pass with others failed
        self._repeated: Job | None = None  # the one of them that is computed now

    def run(self) -> None:
        """Work until the queue is closed and empty.

        If the loop raises, every job that the worker holds gets Unavailable, and the error
        propagates.
        """
        newcomers: list[Job] | None = []
        try:
            while (newcomers := self._next()) is not None:
                self.busy_since = time.monotonic()
                if self._decoded:
                    self._teacher_force_some()
                for jobs in apart(newcomers, lambda job: job.ablates_encoder):
                    for alike in by_length(jobs):
                        self._guard(alike, partial(self._encode, alike))
                self._step_all()
        finally:  # nothing is left by now, unless this worker is dying
            self._fail_all(newcomers or [])
            self.after_pass()

    @property
    def rows(self) -> int:
        """Rows that are being decoded or are about to be; may be read on any thread."""
        return sum(job.rows for job in [*self._running, *self._held])

    @property
    def _running(self) -> list[Job]:
        return [job for batch in [*self._batches.values()] for job in batch.jobs]

    def _next(self) -> list[Job] | None:
        """Return the jobs to encode next, or None when there will be no more.

        Waits for them if there is nothing else to do.
        """
        self._remove_abandoned()
        running = self._running
        taken = [*running, *self._held]
        if self._decoded:
            self._queue.occupy(self._number)
            return self._queue.take_plain(self._number, taken)
        if self._to_repeat or self._repeated:
            self._queue.occupy(self._number)
            held, self._held = self._held, []
            return held or self._next_to_repeat(running)
        if not taken:
            self.busy_since = None
        newcomers = self._queue.take(self._number, taken, busy=bool(taken))
        return self._hold_few(newcomers, len(running))

    def _hold_few(self, newcomers: list[Job] | None, running: int) -> list[Job] | None:
        """Return the jobs to encode now: none if they are few and more will have room after some
        steps. To encode a few takes nearly as long as to encode ENOUGH. No new request waits for
        that."""
        if not newcomers and (newcomers is None or not self._held):
            return newcomers
        waiting = [*self._held, *newcomers]
        sizes = [PassSize(job.size.source, 0) for job in waiting]
        count = self._scheduler.one_pass(sizes, delays=bool(running))
        is_few = count == len(waiting) < min(ENOUGH, running / OF)
        if is_few and self._queue.rows and not any(job.is_first for job in waiting):
            count = 0
        self._held = waiting[count:]
        return waiting[:count]

    def _next_to_repeat(self, running: Sequence[Job]) -> list[Job]:
        """Return a job to compute by itself, once nothing else is being computed."""
        if self._repeated or running:
            return []
        self._repeated = self._to_repeat.pop(0)
        return [self._repeated]

    def _remove_abandoned(self) -> None:
        """Remove jobs that were cancelled, or that failed while they were encoded or scored."""
        for key, batch in [*self._batches.items()]:
            if abandoned := [job for job in batch.jobs if job.abandoned]:
                self._guard(batch.jobs, partial(batch.remove, abandoned), key)
        self._held = [job for job in self._held if not job.abandoned]
        self._decoded = [job for job in self._decoded if not job.abandoned]
        self._to_repeat = [job for job in self._to_repeat if not job.abandoned]
        if self._repeated and self._repeated.abandoned:  # or it has its answer
            self._repeated = None

    def _step_all(self) -> None:
        for key, batch in [*self._batches.items()]:
            if batch.jobs:
                self._guard(batch.jobs, partial(self._step, batch), key)
            elif key.rows_per_source > 1 or key.language:
                del self._batches[key]  # else each number of rows, and language, would keep a cache

    def _teacher_force_some(self) -> None:
        """Run teacher forcing for as many jobs as a pass may hold now."""
        sizes = [job.pass_size for job in self._decoded]
        count = self._scheduler.one_pass(sizes, delays=bool(self._running))
        jobs = self._decoded[:count]
        self._guard(jobs, partial(self._teacher_force, jobs))

    def _guard(
        self, jobs: Sequence[Job], work: Callable[[], None], key: BatchKey | None = None
    ) -> None:
        """Do `work`. If it raises, discard the batch it was changing, and repeat each job by
        itself, so that a bad one fails alone. Those that were alone already fail."""
        try:
            work()
        except Exception as error:  # noqa: BLE001  the clients must hear of whatever broke
            if key:
                self._batches.pop(key, None)
            repeated = self._queue_repeats(jobs)
            counts = {"entries": len(jobs), "repeated": len(repeated)}
            asked = sorted({job.request_id for job in jobs})
            name = self._manifest.name
            try:
                log_error("pass failed", model=name, **counts, request_ids=asked, exc_info=error)
            finally:  # even if there is no memory for the line
                failure = as_failure(error)
                for job in jobs:
                    if job not in repeated:
                        job.finish(failure)
        self.after_pass()

    def _queue_repeats(self, jobs: Sequence[Job]) -> list[Job]:
        """Queue jobs to be computed again, one at a time, and return them. Skip a job that
        was alone in the pass, or that is abandoned."""
        if len(jobs) == 1:
            return []
        chosen = [job for job in jobs if not job.abandoned]
        self._decoded = [job for job in self._decoded if job not in chosen]
        for job in chosen:
            job.forget()
        self._to_repeat += chosen
        return chosen

    def _fail_all(self, newcomers: Sequence[Job]) -> None:
        """Fail the jobs that this worker holds and, if it is the last, those that wait."""
        held = [*newcomers, *self._running, *self._held, *self._decoded, *self._to_repeat]
        left = [*held, *self._queue.leave(self._number)]
        failure = Unavailable(f"model {self._manifest.name} has lost a worker; try again")
        for job in left:
            job.finish(failure)

    def _encode(self, jobs: Sequence[Job]) -> None:
        """Encode sources, which all ablate heads of the encoder, or none does. Then each job joins
        a batch, waits for teacher forcing, or is done."""
        started = time.monotonic()
        entries = [job.entry for job in jobs]
        gates = self._encoder_gates(entries) if jobs[0].ablates_encoder else None
        sources = [entry.source_ids for entry in entries]
        wants_memory = any(job.wants_memory for job in jobs)
        searches = [each.search for each in entries]
        required = [each.required_tokens if each and each.required else () for each in searches]
        memory, cross = self._session.encode(sources, gates, wants_memory, required)
        ended = time.monotonic()
        joining: dict[BatchKey, list[int]] = {}  # places in `jobs`
        for i, job in enumerate(jobs):
            job.answer.seconds = {"queue": started - job.arrived, "encode": ended - started}
            if search := job.entry.search:
                beams, (shortlisted, language) = search.beam_size > 1, self._listed(job, search)
                key = BatchKey(job.rows, beams, shortlisted, bool(search.draft), language)
                joining.setdefault(key, []).append(i)
            elif job.wants_memory:
                job.answer.memory = pool(memory[i], job.entry.pooling)
                job.finish(job.answer)
            else:
                job.cross = cross.pick([i])
                self._decoded.append(job)
        for key, places in joining.items():
            joining_now = [jobs[i] for i in places]
            there = self._batches[key].jobs if key in self._batches else []
            # A failure may damage the KV cache of the jobs already there.
            join = partial(self._join, key, joining_now, cross, places)
            self._guard([*there, *joining_now], join, key)

    def _listed(self, job: Job, search: SearchOptions) -> tuple[bool, tuple[int, ...]]:
        """Return whether the shortlist of its source decides what the job's targets may have, or
        the ids of the language whose list does. Neither does if the job says what its targets are
        or ablates heads, nor a list without the tokens of required phrases."""
        if search.allowed_targets or job.ablates_decoder:
            return False, ()
        language = job.entry.language
        has_list = bool(language) and self._session.lists(language, search.required_tokens)
        return self._session.shortlists is not None, language if has_list else ()

    def _join(self, key: BatchKey, jobs: list[Job], cross: Cross, places: list[int]) -> None:
        """Add jobs to the batch of their key; `places` are theirs in `cross`."""
        if key not in self._batches:
            self._batches[key] = Batch(self._session, key, self._manifest, self._detokenize)
        whole = len(places) == len(cross.source_length)
        self._batches[key].join(jobs, cross if whole else cross.pick(places))

    def _step(self, batch: Batch) -> None:
        started, rows = time.monotonic(), batch.rows
        ended = batch.step(alone=self._queue.is_alone(self._number))
        self.steps.observe(time.monotonic() - started, rows)
        for job in ended:
            if job.cross:
                self._decoded.append(job)
            else:
                job.finish(job.answer)

    def _teacher_force(self, jobs: list[Job]) -> None:
        """Run teacher forcing: decoder passes over whole targets, which give the attention of each
        step as it was when the target was decoded, alignments, or the log-probs of given
        targets."""
        started = time.monotonic()
        for job in jobs:
            job.answer.attention = [{} for _ in job.targets]
            job.answer.alignment = []
        self._attend_sources(jobs)
        self._attend_targets(jobs)
        scored = [job for job in jobs if job.entry.scores]
        for alike in apart(scored, lambda job: job.ablates_decoder):
            self._score(alike)
        del self._decoded[: len(jobs)]
        for job in jobs:
            stage = "score" if job.entry.scores else "attention"
            job.answer.seconds[stage] = time.monotonic() - started
            job.finish(job.answer)

    def _score(self, jobs: list[Job]) -> None:
        """Write the log-probs of given targets without those of the start ids. All jobs ablate
        heads of the decoder, or none does."""
        entries = [job.entry for job in jobs]
        starts = [self._manifest.start_ids(each.language) for each in entries]
        # A pass needs a position, so an empty target gets one whose log-prob is not kept
        wholes = [
            [*start, *(each.target_ids or start[:1])]
            for start, each in zip(starts, entries, strict=True)
        ]
        inputs = [np.array(whole[:-1]) for whole in wholes]
        targets = [np.array(whole[1:]) for whole in wholes]
        crosses = [job.cross for job in jobs if job.cross]
        gates = self._decoder_gates(entries) if jobs[0].ablates_decoder else None
        log_probs = self._session.score(inputs, targets, crosses, gates)
        for job, start, each in zip(jobs, starts, log_probs, strict=True):
            job.answer.log_probs = each[len(start) - 1 :][: len(job.entry.target_ids)]

    def _attend_sources(self, jobs: list[Job]) -> None:
        """Write encoder attention; the hypotheses of a job share it."""
        wanted = [job for job in jobs if "encoder" in job.entry.selection.layers]
        for alike in apart(wanted, weighs_encoder):
            entries = [job.entry for job in alike]
            sources = [entry.source_ids for entry in entries]
            gates = self._encoder_gates(entries) if weighs_encoder(alike[0]) else None
            computed = self._session.encoder_attention(sources, gates)
            for job, attended in zip(alike, computed, strict=True):
                selection = job.entry.selection
                picked = selection.pick("encoder", attended.measured(selection.measure))
                for attention in job.answer.attention:
                    attention["encoder"] = picked

    def _attend_targets(self, jobs: list[Job]) -> None:
        """Write decoder and cross-attention, and alignments, in as many passes as the targets
        need."""
        rows = [
            AttentionRow(job, target, weights)
            for job in jobs
            if job.entry.aligns or job.entry.selection.layers.keys() - {"encoder"}
            for target, weights in zip(job.targets, job.answer.attention, strict=True)
        ]
        for alike in apart(rows, lambda row: row.gated):
            while alike:
                sizes = [PassSize(row.positions, len(row.target) * row.gated) for row in alike]
                count = self._scheduler.one_pass(sizes, delays=False)
                self._attend(alike[:count])
                del alike[:count]

    def _attend(self, rows: list[AttentionRow]) -> None:
        entries = [row.job.entry for row in rows]
        before = [[*self._manifest.start_ids(each.language), *each.prefix] for each in entries]
        inputs = [self._read(row, ids) for ids, row in zip(before, rows, strict=True)]
        crosses = [row.job.cross for row in rows if row.job.cross]
        gates = self._decoder_gates(entries) if rows[0].gated else None
        computed = self._session.attention(inputs, crosses, gates)
        for row, ids, attended in zip(rows, before, computed, strict=True):
            entry, selection = row.job.entry, row.job.entry.selection
            first = len(ids) - 1  # the position that predicts the first token
            count = len(row.target)
            steps = selection.steps(count)
            wanted = slice(first + steps.start, first + steps.stop)
            if "decoder" in selection.layers:
                # without a step for the alignment
                columns = len(ids) + row.read
                shown = attended["decoder"].measured(selection.measure)[..., :columns]
                row.weights["decoder"] = selection.pick("decoder", shown, wanted)
            if "cross" in selection.layers:
                shown = attended["cross"].measured(selection.measure)
                row.weights["cross"] = selection.pick("cross", shown, wanted)
            if entry.aligns and self._manifest.alignment:
                weights, prefix = attended["cross"].weights, len(entry.prefix)
                aligned = align_steps(
                    self._manifest.alignment, weights, first - prefix, prefix + count
                )
                row.job.answer.alignment.append(aligned)

    def _read(self, row: AttentionRow, before: Sequence[int]) -> IntArray:
        """Return what the decoder reads: what stands before a target, and all of it but its last
        token, which it reads too if an alignment needs that step and there is a position for it.
        """
        alignment = self._manifest.alignment
        whole = row.job.entry.aligns and alignment and alignment.shift
        longest = self._manifest.limits.max_target_length
        ids = [*before, *row.target]
        return np.array(ids[: longest if whole else len(before) + row.read])


def weighs_encoder(job: Job) -> bool:
    """Return whether the gated graph computes the encoder attention."""
    return job.ablates_encoder or job.entry.selection.measure == "norm"


def as_failure(error: Exception) -> HeedError:
    """Return what the clients are told: an error that was written for them, without its frames,
    which hold the batch."""
    if isinstance(error, HeedError):
        return error.forget_frames()
    return PassFailed(
        f"the model failed on a source of this request ({type(error).__name__}): send it again,"
        " and report the request_id if it fails again"
    )
