"""Entries in, answers out: one worker thread that owns the sessions and the cache of a bundle."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import structlog

from service.attention import Kind
from service.bundle import Bundle
from service.cache import Cross, FloatArray
from service.entry import Answer, Entry
from service.errors import HeedError, PassFailed, Unavailable
from service.parity import check_parity
from service.scheduler import Scheduler
from service.search import Search
from service.session import Session, start_runtime
from service.settings import Settings

STALLED_AFTER = 30.0  # seconds with work at hand and none of it done

log = structlog.get_logger()


@dataclass(slots=True)
class Live:
    """An entry whose rows stand in the cache."""

    entry: Entry
    search: Search
    started: float


@dataclass(slots=True)
class Decoded:
    """An entry that waits for its attention; `cross` is what cross-attention reads."""

    entry: Entry
    cross: Cross


class Engine:
    def __init__(self, bundle: Bundle, settings: Settings) -> None:
        """Opens the bundle's graphs. Raises StartupError."""
        start_runtime(settings.cores)
        self.bundle = bundle
        self.session = Session(bundle, settings.precision, settings.provider)
        if settings.self_check:
            check_parity(self.session, bundle)
        config = bundle.manifest.config
        self._scheduler = Scheduler(
            settings.max_queue,
            settings.max_batch_tokens,
            settings.max_pass_tokens,
            pass_cost=1 if config.score_function == "scaled_dot_product" else config.d_qk,
        )
        self._cache = self.session.new_cache(Search.width)
        self._waiting: deque[Entry] = deque()
        self._live: list[Live] = []  # in the order of the cache
        self._tokens = np.zeros(0, np.int64)  # (R,): what each row reads next
        self._decoded: list[Decoded] = []
        self._changed = threading.Condition()
        self._closing = False
        self._beat = time.monotonic()
        self._thread = threading.Thread(
            target=self._work, name=f"engine {bundle.manifest.name}", daemon=True
        )

    def start(self) -> None:
        """From the event loop that will wait for the answers."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def close(self) -> None:
        """Takes nothing more, finishes what it has, ends the worker."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    @property
    def ready(self) -> bool:
        """The worker lives and, if it has work, has moved lately."""
        stalled = self._busy and time.monotonic() - self._beat > STALLED_AFTER
        return self._thread.is_alive() and not self._closing and not stalled

    def submit(self, entries: Sequence[Entry]) -> None:
        """All are accepted and each `result` will be set, or none is.

        Raises Overloaded when the queue is full, Unavailable when the worker is gone or leaving.
        """
        with self._changed:
            if self._closing or not self._thread.is_alive():
                raise self._unavailable()
            if not self._busy:
                self._beat = time.monotonic()
            self._scheduler.check_queue(len(self._waiting), len(entries))
            self._waiting.extend(entries)
            self._changed.notify()

    @property
    def _busy(self) -> bool:
        return bool(self._waiting or self._live or self._decoded)

    def _unavailable(self) -> Unavailable:
        return Unavailable(f"model {self.bundle.manifest.name} takes no requests now")

    def _work(self) -> None:
        try:
            while (newcomers := self._next()) is not None:
                if self._decoded:
                    count = self._scheduler.one_pass(one.entry.tokens for one in self._decoded)
                    batch = self._decoded[:count]
                    self._run([one.entry for one in batch], partial(self._attend, batch))
                elif newcomers:
                    self._run(newcomers, partial(self._encode, newcomers))
                if self._live:
                    self._run([live.entry for live in self._live], self._step)
                self._beat = time.monotonic()
        finally:  # nothing is left by now, unless the worker is dying
            with self._changed:
                self._closing = True
                held = [one.entry for one in (*self._live, *self._decoded)]
                self._deliver([(entry, self._unavailable()) for entry in (*held, *self._waiting)])

    def _next(self) -> list[Entry] | None:
        """Waits for work and says what to encode. None: there will be no work any more."""
        self._decoded = [one for one in self._decoded if not one.entry.abandoned]
        self._remove([i for i, live in enumerate(self._live) if live.entry.abandoned])
        with self._changed:
            self._changed.wait_for(lambda: self._busy or self._closing)
            if not self._busy:
                return None
            self._waiting = deque(entry for entry in self._waiting if not entry.abandoned)
            if self._decoded:
                return []
            waiting = (entry.tokens for entry in self._waiting)
            admitted = self._scheduler.admit(waiting, [live.entry.tokens for live in self._live])
            return [self._waiting.popleft() for _ in range(admitted)]

    def _run(self, entries: list[Entry], work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # whatever broke, these clients must hear of it and no others
            log.exception("pass failed", entries=len(entries))
            failure = PassFailed(f"the model failed on this batch: {type(error).__name__}")
            self._deliver([(entry, failure) for entry in entries])
            self._decoded = [one for one in self._decoded if one.entry not in entries]
            self._remove([i for i, live in enumerate(self._live) if live.entry in entries])

    def _encode(self, entries: list[Entry]) -> None:
        started = time.monotonic()
        encoded = self.session.encode([entry.source_ids for entry in entries])
        ended = time.monotonic()
        joining: list[tuple[Entry, Cross]] = []
        for entry, (memory, cross) in zip(entries, encoded, strict=True):
            entry.answer.seconds |= {"queue": started - entry.arrived, "encode": ended - started}
            if entry.max_new_tokens:
                joining.append((entry, cross))
            elif entry.selection.layers:
                self._decoded.append(Decoded(entry, cross))
            else:
                entry.answer.memory = memory
                self._deliver([(entry, entry.answer)])
        if joining:
            self._join([entry for entry, _ in joining], [cross for _, cross in joining], ended)

    def _join(self, entries: list[Entry], crosses: list[Cross], now: float) -> None:
        self._cache.insert(crosses)
        start, *forced = self._start_ids
        eos_id = self.bundle.manifest.eos_id
        self._live += [
            Live(entry, Search(forced, eos_id, entry.max_new_tokens), now) for entry in entries
        ]
        starts = np.full(len(entries) * self._cache.width, start)
        self._tokens = np.concatenate([self._tokens, starts])

    def _step(self) -> None:
        live, width = self._live, self._cache.width
        top = self.session.step(self._cache, self._tokens, Search.candidates)
        parents = np.arange(len(self._tokens))
        for i, one in enumerate(live):
            rows = slice(i * width, (i + 1) * width)
            choice = one.search.advance(top.log_probs[rows], top.ids[rows])
            self._tokens[rows], parents[rows] = choice.tokens, i * width + choice.parents
        self._cache.reorder(parents)
        now = time.monotonic()
        finished = [i for i, one in enumerate(live) if one.search.hypothesis]
        for i in finished:
            entry = live[i].entry
            entry.answer.hypothesis = live[i].search.hypothesis
            entry.answer.seconds["decode"] = now - live[i].started
            if entry.selection.layers:
                self._decoded.append(Decoded(entry, self._cache.cross(i)))
        self._remove(finished)
        entries = [live[i].entry for i in finished if not live[i].entry.selection.layers]
        self._deliver([(entry, entry.answer) for entry in entries])

    def _attend(self, batch: list[Decoded]) -> None:
        started = time.monotonic()
        encoder = [one for one in batch if "encoder" in one.entry.selection.layers]
        if encoder:
            weights = self.session.encoder_attention([one.entry.source_ids for one in encoder])
            for one, all_layers in zip(encoder, weights, strict=True):
                self._keep(one.entry, "encoder", all_layers)
        forced = [one for one in batch if one.entry.selection.layers.keys() - {"encoder"}]
        if forced:
            targets = [np.array(self._decoder_inputs(one.entry)) for one in forced]
            pairs = self.session.attention(targets, [one.cross for one in forced])
            first = len(self._start_ids) - 1  # this row predicts the first token
            for one, (decoder, cross) in zip(forced, pairs, strict=True):
                self._keep(one.entry, "decoder", decoder[:, :, first:])
                self._keep(one.entry, "cross", cross[:, :, first:])
        ended = time.monotonic()
        for one in batch:
            one.entry.answer.seconds["attention"] = ended - started
        del self._decoded[: len(batch)]
        self._deliver([(one.entry, one.entry.answer) for one in batch])

    @staticmethod
    def _keep(entry: Entry, kind: Kind, weights: FloatArray) -> None:
        if kind in entry.selection.layers:
            entry.answer.attention[kind] = entry.selection.pick(kind, weights)

    @property
    def _start_ids(self) -> list[int]:
        return self.bundle.manifest.decoder_start_ids

    def _decoder_inputs(self, entry: Entry) -> list[int]:
        hypothesis = entry.answer.hypothesis
        target_ids = hypothesis.token_ids if hypothesis else entry.target_ids
        return [*self._start_ids, *target_ids[:-1]]

    def _remove(self, indices: list[int]) -> None:
        """Take sources out of the cache; the last ones move into their places."""
        if not indices:
            return
        keep = np.arange(len(self._live) - len(indices))
        gone = set(indices)
        keep[[i for i in indices if i < len(keep)]] = [
            i for i in range(len(keep), len(self._live)) if i not in gone
        ]
        self._cache.compact(keep)
        self._tokens = self._tokens.reshape(-1, self._cache.width)[keep].ravel()
        self._live = [self._live[i] for i in keep]

    def _deliver(self, outcomes: list[tuple[Entry, Answer | HeedError]]) -> None:
        if outcomes:
            self._loop.call_soon_threadsafe(deliver, outcomes)


def deliver(outcomes: list[tuple[Entry, Answer | HeedError]]) -> None:
    """On the event loop. A result that is done already was cancelled by its client."""
    for entry, outcome in outcomes:
        if entry.result.done():
            continue
        if isinstance(outcome, HeedError):
            entry.result.set_exception(outcome)
        else:
            entry.result.set_result(outcome)
