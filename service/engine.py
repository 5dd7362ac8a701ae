"""Entries in, answers out: one worker thread that owns the sessions and the cache of a bundle."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import structlog

from service.attention import Kind, Selection
from service.bundle import Bundle
from service.errors import HeedError, PassFailed, Unavailable
from service.parity import check_parity
from service.scheduler import Scheduler
from service.search import Hypothesis, Search
from service.session import Encoded, FloatArray, IntArray, Session, start_runtime
from service.settings import Settings

PRECISION = "fp32"
STALLED_AFTER = 30.0  # seconds with work at hand and none of it done

log = structlog.get_logger()


@dataclass(slots=True)
class Answer:
    """What an entry asked for: memory (S, M), a hypothesis, the selected attention weights
    (layers, heads, queries, keys) by kind; and the seconds each stage took."""

    memory: FloatArray | None = None
    hypothesis: Hypothesis | None = None
    attention: dict[Kind, FloatArray] = field(default_factory=dict[Kind, FloatArray])
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def decoded(self) -> Hypothesis:
        """Of an entry that decodes."""
        assert self.hypothesis is not None
        return self.hypothesis

    @property
    def encoded(self) -> FloatArray:
        """The memory, of an entry that is encoded and no more."""
        assert self.memory is not None
        return self.memory


@dataclass(slots=True, eq=False, kw_only=True)
class Entry:
    """One source: encoded; then decoded if it may generate tokens; then attended if attention is
    selected, over `target_ids` if they are given, else over what it generated.

    Made on the event loop, which alone touches `result`; the worker only looks whether it is done:
    a result that was cancelled, by its client or by a deadline, frees its rows at the next step.
    """

    source_ids: IntArray
    max_new_tokens: int = 0
    target_ids: list[int] = field(default_factory=list[int])
    selection: Selection | None = None
    arrived: float = field(default_factory=time.monotonic)
    result: "asyncio.Future[Answer]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    answer: Answer = field(default_factory=Answer)
    encoded: Encoded | None = None

    @property
    def tokens(self) -> int:
        return len(self.source_ids) + max(self.max_new_tokens, len(self.target_ids))

    @property
    def abandoned(self) -> bool:
        return self.result.done()


@dataclass(slots=True)
class Live:
    """An entry whose rows stand in the cache."""

    entry: Entry
    search: Search
    started: float


class Engine:
    def __init__(self, bundle: Bundle, settings: Settings) -> None:
        """Opens the bundle's graphs. Raises StartupError."""
        start_runtime(settings.threads or os.cpu_count() or 1)
        self.bundle = bundle
        self.session = Session(bundle, PRECISION, settings.provider)
        if settings.self_check:
            check_parity(self.session, bundle)
        self._scheduler = Scheduler[Entry](
            settings.max_queue, settings.max_batch_tokens, settings.max_pass_tokens
        )
        self._cache = self.session.new_cache(Search.width)
        self._live: list[Live] = []  # in the order of the cache
        self._tokens = np.zeros(0, np.int64)  # (R,): what each row reads next
        self._to_attend: list[Entry] = []
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
                raise Unavailable(f"model {self.bundle.manifest.name} takes no requests now")
            if not self._busy:
                self._beat = time.monotonic()
            self._scheduler.put(entries)
            self._changed.notify()

    @property
    def _busy(self) -> bool:
        return bool(self._scheduler.waiting or self._live or self._to_attend)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._busy or self._closing)
                if not self._busy:
                    return
                self._remove_abandoned()
                running = [live.entry for live in self._live]
                newcomers = [] if self._to_attend else self._scheduler.admit(running)
            if self._to_attend:
                self._run(self._attend, self._scheduler.one_pass(self._to_attend))
            elif newcomers:
                self._run(self._encode, newcomers)
            if self._live:
                self._run(self._step, [live.entry for live in self._live])
            self._beat = time.monotonic()

    def _run(self, work: Callable[[list[Entry]], None], entries: list[Entry]) -> None:
        try:
            work(entries)
        except Exception as error:  # whatever broke, these clients must hear of it and no others
            log.exception("pass failed", work=work.__name__, entries=len(entries))
            self._remove([i for i, live in enumerate(self._live) if live.entry in entries])
            self._to_attend = [entry for entry in self._to_attend if entry not in entries]
            failure = PassFailed(f"the model failed on this batch: {type(error).__name__}")
            self._deliver([(entry, failure) for entry in entries])

    def _encode(self, entries: list[Entry]) -> None:
        started = time.monotonic()
        encoded = self.session.encode([entry.source_ids for entry in entries])
        ended = time.monotonic()
        for entry, source in zip(entries, encoded, strict=True):
            entry.answer.seconds |= {"queue": started - entry.arrived, "encode": ended - started}
            entry.encoded = source if entry.selection else None
            if not (entry.max_new_tokens or entry.selection):
                entry.answer.memory = source.memory
        decoding = [i for i, entry in enumerate(entries) if entry.max_new_tokens]
        if decoding:
            self._cache.insert([encoded[i] for i in decoding])
            self._live += [self._begin(entries[i], ended) for i in decoding]
            starts = np.full(len(decoding) * Search.width, self._start_ids[0])
            self._tokens = np.concatenate([self._tokens, starts])
        self._pass_on([entry for entry in entries if not entry.max_new_tokens])

    def _begin(self, entry: Entry, now: float) -> Live:
        eos_id = self.bundle.manifest.eos_id
        return Live(entry, Search(self._start_ids[1:], eos_id, entry.max_new_tokens), now)

    def _step(self, entries: list[Entry]) -> None:
        width = self._cache.width
        candidates = self.session.step(self._cache, self._tokens, Search.candidates)
        parents = np.arange(len(self._tokens))
        for i, live in enumerate(self._live):
            rows = slice(i * width, (i + 1) * width)
            choice = live.search.advance(candidates.log_probs[rows], candidates.ids[rows])
            self._tokens[rows], parents[rows] = choice.tokens, i * width + choice.parents
        self._cache.reorder(parents)
        now = time.monotonic()
        for live in self._live:
            if live.search.hypothesis:
                live.entry.answer.hypothesis = live.search.hypothesis
                live.entry.answer.seconds["decode"] = now - live.started
        finished = [i for i, live in enumerate(self._live) if live.search.hypothesis]
        self._remove(finished)
        self._pass_on([entries[i] for i in finished])

    def _attend(self, entries: list[Entry]) -> None:
        started = time.monotonic()
        wanted = {kind for entry in entries if entry.selection for kind in entry.selection.layers}
        weights: dict[Kind, list[FloatArray]] = {}
        if "encoder" in wanted:
            sources = [entry.source_ids for entry in entries]
            weights["encoder"] = self.session.encoder_attention(sources)
        if wanted - {"encoder"}:
            weights |= self._attend_targets(entries)
        ended = time.monotonic()
        for i, entry in enumerate(entries):
            selection = entry.selection
            if selection:
                entry.answer.attention = {
                    kind: selection.pick(kind, weights[kind][i]) for kind in selection.layers
                }
            entry.answer.seconds["attention"] = ended - started
        self._to_attend = self._to_attend[len(entries) :]
        self._deliver([(entry, entry.answer) for entry in entries])

    def _attend_targets(self, entries: list[Entry]) -> dict[Kind, list[FloatArray]]:
        """One forced pass over all targets; row i is the step that predicted the i-th token."""
        forced = [np.array(self._decoder_inputs(entry)) for entry in entries]
        sources = [entry.encoded for entry in entries if entry.encoded]
        first = len(self._start_ids) - 1
        pairs = self.session.attention(forced, sources)
        return {
            "decoder": [decoder[:, :, first:] for decoder, _ in pairs],
            "cross": [cross[:, :, first:] for _, cross in pairs],
        }

    @property
    def _start_ids(self) -> list[int]:
        return self.bundle.manifest.decoder_start_ids

    def _decoder_inputs(self, entry: Entry) -> list[int]:
        hypothesis = entry.answer.hypothesis
        target_ids = hypothesis.token_ids if hypothesis else entry.target_ids
        return [*self._start_ids, *target_ids[:-1]]

    def _pass_on(self, entries: Sequence[Entry]) -> None:
        """Entries that need no more steps."""
        self._to_attend += [entry for entry in entries if entry.selection]
        self._deliver([(entry, entry.answer) for entry in entries if not entry.selection])

    def _remove_abandoned(self) -> None:
        self._scheduler.remove_abandoned()
        self._to_attend = [entry for entry in self._to_attend if not entry.abandoned]
        self._remove([i for i, live in enumerate(self._live) if live.entry.abandoned])

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
