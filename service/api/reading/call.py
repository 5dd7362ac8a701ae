"""A request at its endpoint: what it shares with others, how it waits without blocking the event
loop, and how it gets answers from an engine."""

import asyncio
import time
from asyncio import FIRST_COMPLETED
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TypeVar

from anyio import CapacityLimiter, WouldBlock
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.types import Receive, Scope

from service.api.reading.faults import Faults
from service.errors import (
    Abandoned,
    DeadlineExceeded,
    Invalid,
    NotFound,
    Overloaded,
    PassFailed,
    TooLarge,
    Unavailable,
    shorten,
)
from service.http.limits import FREE, TIMEOUT_HEADER, WAIT, Budget, Record, Stage, Terms
from service.http.middleware.door import Admission
from service.http.middleware.keys import Keys
from service.http.middleware.metrics import RequestMetrics
from service.runtime.mechanisms import Mechanisms
from service.serving.client import OnProgress
from service.serving.model import Model
from service.serving.registry import Registry
from service.settings.settings import Settings
from service.wire import NO_REST, Answer, Entry, Rest

LITTLE = 64  # characters to read or tokens to write: quicker than waking a thread
SMALL = 1 << 11  # bytes, characters, ids or numbers: some milliseconds at most
LARGE = 1 << 16  # the same: above it few may wait, since they hold much memory
CLASSES = (SMALL, LARGE)  # largest sizes of two classes of work; a third has all above
ENTRIES_AT_ONCE = 128  # entries of a part: where a request is refused, they were sent for nothing
MOST_WAITING = 32  # requests that hold large bodies in memory while they wait for a core
ROW_OPTIONS = "beam_size or num_hypotheses"  # that make a request take more rows

ResultT = TypeVar("ResultT")
Found = TypeVar("Found")


def one_of_each_class() -> list[CapacityLimiter]:
    return [CapacityLimiter(1) for _ in (*CLASSES, None)]


def limiter_of(classes: Sequence[CapacityLimiter], size: int) -> CapacityLimiter:
    """Return which of the limiters `one_of_each_class` is for work of this size."""
    return classes[bisect_left(CLASSES, size)]


@dataclass(slots=True)
class Service:
    """Objects that all requests of an application share."""

    settings: Settings
    admission: Admission
    registry: Registry
    metrics: RequestMetrics
    answers: Budget
    cores: CapacityLimiter  # limits the threads that make pictures and large answers
    keys: Keys | None
    admin: Keys | None
    mechanisms: Mechanisms = field(init=False)  # opened with the models
    classes: list[CapacityLimiter] = field(default_factory=one_of_each_class)
    # One thread writes events: it holds the interpreter's lock, which the event loop needs too
    events: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(1))
    ending: bool = False  # whether the time has come to refuse what is not read yet


class Call(Request):
    """A request that has passed the middleware."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        super().__init__(scope, receive)
        state = scope["state"]
        self.service: Service = scope["app"].state.service
        self.settings = self.service.settings
        self.record: Record = state["record"]
        self.request_id: str = state["request_id"]
        self._terms: Terms = state["terms"]
        self.deadline = self._terms.deadline

    @property
    def left(self) -> float:
        """Seconds until the deadline, at least 0."""
        return max(0.0, self.deadline.at - time.monotonic())

    def find_model(self, name: str | None) -> Model:
        """Return the model of this name, or the only one. Raise as `find_model` does."""
        registry = self.service.registry
        return find_model(registry.served, name, registry.failed)

    def use_model(self, name: str | None) -> Model:
        """Return the model of this name, or the only one; it is not closed before the request ends.
        Raise as `find_model` does."""
        model = self.find_model(name)
        self.record.model = model.name
        model.use()
        self.at_end(model.release)
        return model

    def at_end(self, end: Callable[[], None]) -> None:
        """Call `end` when the request has ended, however it ends."""
        self._terms.at_end.append(end)

    async def compute_reading(self, work: Callable[[], ResultT], size: int) -> ResultT:
        """Run `work` as `compute` does. Also raise Overloaded if `size` exceeds LARGE and
        MOST_WAITING such requests wait already, and Unavailable if the service ends before its
        turn comes."""
        if size > LARGE:
            check_line(self.service.classes[-1])

        def begin() -> ResultT:
            if self.service.ending:
                raise Unavailable("the service is ending: send the request again")
            return work()

        return await self.compute(begin, size)

    async def compute(self, work: Callable[[], ResultT], size: int) -> ResultT:
        """Run `work`, which reads or writes `size` bytes, characters, ids or numbers: inline up to
        LITTLE, else in a thread. Each of the CLASSES has one such thread at a time.

        Most of this work holds the interpreter's lock: several threads would be no faster, and
        would keep the lock from the event loop. Raise the errors of `wait_for` while waiting.
        """
        if size <= LITTLE:
            return work()
        return await self._limited(limiter_of(self.service.classes, size), work)

    async def compute_limited(self, work: Callable[[], ResultT]) -> ResultT:
        """Run `work` in a thread, with at most settings.cores of these at once in the process.

        Work that has begun always runs to its end: its size is bounded. Raise Overloaded if
        MOST_WAITING requests wait already, and the errors of `wait_for` while waiting.
        """
        check_line(self.service.cores)
        return await self._limited(self.service.cores, work)

    async def _limited(self, limiter: CapacityLimiter, work: Callable[[], ResultT]) -> ResultT:
        """Run `work` in a thread as soon as `limiter` lets it."""
        borrower = object()  # stands for this request: another task may wait for the limiter
        try:
            limiter.acquire_on_behalf_of_nowait(borrower)
        except WouldBlock:
            await self.wait_for(limiter.acquire_on_behalf_of(borrower))
        try:
            return await run_in_threadpool(work)
        finally:
            limiter.release_on_behalf_of(borrower)

    async def wait_for(self, work: Awaitable[ResultT]) -> ResultT:
        """Wait for `work` and return its result. Cancel it if the wait ends early.

        Raise Abandoned when the client disconnects, DeadlineExceeded at the deadline of the
        request. The body must have been read: the next message from the client is then its
        disconnect.
        """
        future = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(self.receive())
        try:
            await asyncio.wait({future, gone}, timeout=self.left, return_when=FIRST_COMPLETED)
            if future.done():
                return future.result()
            if gone.done():
                raise Abandoned("the client closed the connection")
            raise self.too_late()
        finally:
            gone.cancel()
            future.cancel()

    def too_late(self) -> DeadlineExceeded:
        """Return the error of a request that is not answered by its deadline."""
        limit = self.deadline.limit
        setting = TIMEOUT_HEADER if limit < self.settings.timeout else "HEED_TIMEOUT"
        return DeadlineExceeded(
            f"the request, with its wait for others, took longer than its limit of {limit:g}"
            f" seconds: send less, raise {setting}, or try again later"
        )

    def submit(
        self,
        model: Model,
        entries: Sequence[Entry],
        on_progress: OnProgress | None = None,
        rest: Rest = NO_REST,
    ) -> "list[asyncio.Future[Answer]]":
        """Hand the entries to the engine, if there are any. Raise TooLarge for more rows than
        max_rows."""
        if not entries:
            return []
        limit = self.settings.max_rows
        rows = sum(entry.rows for entry in entries)
        if rows > limit:
            raise TooLarge(
                f"this request takes {rows} rows (sources, or their sentences, times beams or"
                f" samples) and the limit is {limit}: send less, or lower {ROW_OPTIONS}"
            )
        record = self.record
        if not record.submitted:  # else some of them are decoded again
            record.sources = len(entries)
            record.source_tokens = sum(len(entry.source_ids) for entry in entries)
        record.submitted, left = time.monotonic(), self.left
        return model.engine.submit(entries, on_progress, left, self.request_id, rest)

    async def submit_and_wait(
        self,
        model: Model,
        entries: Sequence[Entry],
        faults: Faults | None = None,
        results: Sequence[int] = (),
    ) -> list[Answer]:
        """Return the answers to all entries, as `gather_answers` does. On a failure, and when the
        client leaves or the time is up, cancel the others."""
        futures = self.submit(model, entries)
        try:
            answers = await self.wait_for(gather_answers(futures, faults, results))
        finally:
            cancel_all(futures)
        self.note(answers)
        return answers

    async def submit_in_parts(
        self, model: Model, entries: Sequence[Entry], faults: Faults, results: Sequence[int]
    ) -> list[Answer]:
        """Return the answers to entries as `submit_and_wait` does, without a record of them.

        They are sent ENTRIES_AT_ONCE at a time, in two parts: while the engine computes one, it has
        rows of the next. So it always knows of the request, and of what is to come of it. The
        second part follows once the engine has accepted the first, and answered one of its entries.
        """
        since, left = time.monotonic(), sum(entry.rows for entry in entries)
        sent: list[asyncio.Future[Answer]] = []
        parts: list[asyncio.Future[list[Answer]]] = []
        answers: list[Answer] = []
        try:
            for start in range(0, len(entries), ENTRIES_AT_ONCE):
                if len(parts) > 1:
                    answers += await self.wait_for(parts[-2])
                part = slice(start, start + ENTRIES_AT_ONCE)
                left -= sum(entry.rows for entry in entries[part])
                futures = self.submit(model, entries[part], rest=Rest(left, since))
                sent += futures
                parts.append(gather_answers(futures, faults, results[part]))
                if not start:
                    await self.wait_for(asyncio.wait(futures, return_when=FIRST_COMPLETED))
                    raise_refusal(futures)
            for each in parts[-2:]:
                answers += await self.wait_for(each)
        finally:
            cancel_all(sent)  # a part that has failed would cancel none of its own
        return answers

    def note(self, answers: Sequence[Answer]) -> None:
        """Record what all answers hold, and the slowest source of each stage."""
        record = self.record
        record.generated_tokens = record.attention_bytes = 0
        record.drafted_tokens = record.accepted_tokens = 0
        for answer in answers:
            record.generated_tokens += sum(len(each.token_ids) for each in answer.hypotheses)
            record.drafted_tokens += sum(each.drafted for each in answer.hypotheses)
            record.accepted_tokens += sum(each.accepted for each in answer.hypotheses)
            weights = (array for kinds in answer.attention for array in kinds.values())
            record.attention_bytes += sum(array.nbytes for array in weights)
            started = record.submitted
            for stage, seconds in answer.seconds.items():
                self.add_stage(stage, started, seconds)
                started += seconds

    def add_stage(self, name: str, started: float, seconds: float) -> None:
        """Record a stage. If several sources went through it, the slowest one counts."""
        stages = self.record.stages
        if name not in stages or stages[name].seconds < seconds:
            stages[name] = Stage(started, seconds)

    def end_stage(self, name: str, started: float) -> None:
        """Record a stage that ends now."""
        self.add_stage(name, started, time.monotonic() - started)

    def check_line(self, nbytes: int) -> None:
        """Raise Overloaded if an answer of `nbytes` would not even wait for the budget: nothing
        need be read for it then."""
        if nbytes > FREE and self.service.answers.crowded:
            raise self.service.answers.refuse()

    async def hold(self, nbytes: int) -> None:
        """Wait until the budget has room for an answer of `nbytes`, and keep that room until the
        answer has been read.

        Raise Overloaded after WAIT seconds, or at once if many wait already, and the errors of
        `wait_for`.
        """
        budget = self.service.answers
        most = min(nbytes, budget.limit)
        if nbytes <= FREE or budget.give(self._terms.share, most):
            return
        try:
            with self._terms.aside():
                await self.wait_for(asyncio.wait_for(budget.wait(self._terms.share, most), WAIT))
        except TimeoutError:
            raise budget.refuse() from None

    def correct(self, nbytes: int) -> None:
        """Replace the most bytes that an answer might take by those that it takes, once they are
        known."""
        self.service.answers.set(self._terms.share, nbytes if nbytes > FREE else 0)


def find_model(models: Mapping[str, Found], name: str | None, failed: Container[str] = ()) -> Found:
    """Return the model of this name, or the only one. Raise Invalid or NotFound, which name all
    models, or Unavailable if there is none. Models named in `failed` were not opened at the start.
    """
    if not models:
        raise Unavailable("no model is served now: try again when one is loaded")
    if name is None and len(models) == 1:
        (name,) = models
    if name is None:
        detail = f"is required, because several models are served: give one of {', '.join(models)}"
        raise Invalid.at("/model", detail)
    if name not in models:
        why = f"no model {shorten(name)!r} is served: "
        if name in failed:
            why = f"model {name} could not be opened, which its operator must fix: "
        elif near := get_close_matches(shorten(name), models, 1):
            why += f"did you mean {near[0]}? "
        raise NotFound("unknown_model", f"{why}give one of {', '.join(models)}")
    return models[name]


def raise_refusal(futures: "Sequence[asyncio.Future[Answer]]") -> None:
    """Raise the error with which the engine has refused all entries of a part, if it has."""
    for future in futures:
        error = future.exception() if future.done() else None
        if error and not isinstance(error, PassFailed):
            raise error


def gather_answers(
    futures: "Sequence[asyncio.Future[Answer]]", faults: Faults | None, results: Sequence[int]
) -> "asyncio.Future[list[Answer]]":
    """Return a future of all answers, which ends with the first failure.

    In a partial request, an entry whose pass fails gets an empty answer instead, and `faults` gets
    the error. `results` has the index of the result to which each entry belongs.
    """
    if faults and faults.partial:
        pairs = zip(futures, results, strict=True)
        answers = asyncio.gather(*(answer_or_note(*pair, faults) for pair in pairs))
    else:
        answers = asyncio.gather(*futures)
    # asyncio logs a failure that nobody looks at, such as one after the client has left.
    answers.add_done_callback(lambda done: done.cancelled() or done.exception())
    return answers


async def answer_or_note(future: "asyncio.Future[Answer]", result: int, faults: Faults) -> Answer:
    """Return the answer to an entry; if its pass has failed, an empty one and a fault."""
    try:
        return await future
    except PassFailed as error:
        faults.add(error, result)
        return Answer()


def cancel_all(futures: "Sequence[asyncio.Future[Answer]]") -> None:
    """Cancel the entries that have not ended, which frees their rows in the engine."""
    for future in futures:
        future.cancel()


def check_line(limiter: CapacityLimiter) -> None:
    """Raise Overloaded if MOST_WAITING requests wait for this limiter."""
    if limiter.statistics().tasks_waiting >= MOST_WAITING:
        raise Overloaded(
            f"{MOST_WAITING} requests wait for a core already, which is the limit: try again later"
        )
