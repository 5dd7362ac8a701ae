"""The answer of /v1/decode as server-sent events: tokens are sent as soon as they are certain."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import ExitStack, aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from anyio import CapacityLimiter, to_thread
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from service.api.answering.respond import LARGE_ANSWER
from service.api.answering.serialize import write_alternatives
from service.api.reading.call import LITTLE, Call, cancel_all, gather_answers, limiter_of
from service.api.reading.faults import Faults
from service.api.reading.texts import Sources
from service.errors import Abandoned, HeedError
from service.formats.json import Document, to_json, to_json_pieces
from service.http.messages.problems import problem
from service.search.protocol import BeamProgress, Progress, TokenProgress, progress_size
from service.serving.model import Model
from service.text.tokenizer import Reader
from service.wire import Answer, Entry

EVENT_STREAM = "text/event-stream"
PING, PING_AFTER = b": ping\n\n", 10.0  # a comment, after so many seconds without an event
# Characters at which some readers end a line, such as Python's str.splitlines. JSON need not escape
# them.
LINE_BREAKS = tuple((each.encode(), rb"\u%04x" % ord(each)) for each in "\u0085\u2028\u2029")
GRACE = 5.0  # seconds that a client has after the deadline to read the rest
MOST_WRITTEN = 1 << 12  # tokens and alternatives whose events are written at once: milliseconds

Limited = TypeVar("Limited")
ProgressOf = tuple[int, Progress]  # the index of an entry, and its progress
ProgressQueue = asyncio.Queue[ProgressOf | None]  # None: all entries have ended, or one has failed


@dataclass(frozen=True, slots=True)
class Stream:
    """The events of one request. `write` makes the document of the whole answer. `faults` collects
    the errors of entries that fail alone. `complete` adds to the answers before the last event.
    `open_writer` makes the writer of the events."""

    call: Call
    model: Model
    entries: Sequence[Entry]
    sources: Sources
    write: Callable[[Sequence[Answer]], Document]
    faults: Faults
    complete: Callable[[Sequence[Answer]], Awaitable[None]] | None = None
    open_writer: "Callable[[Stream], EventWriter]" = field(default=lambda it: EventWriter(it))

    async def respond(self) -> Response:
        """Wait for the first event, so that earlier errors can be raised and answered as usual."""
        queue: ProgressQueue = asyncio.Queue()

        def on_progress(entry: int, progress: Progress) -> None:
            queue.put_nowait((entry, progress))

        futures = self.call.submit(self.model, self.entries, on_progress)
        answers = gather_answers(futures, self.faults, self.sources.results)
        answers.add_done_callback(lambda _: queue.put_nowait(None))
        with ExitStack() as unless_streaming:
            unless_streaming.callback(cancel_all, futures)
            first = await self.call.wait_for(queue.get())
            if first is None:
                answers.result()  # raises if an entry has failed
            unless_streaming.pop_all()
        record = self.call.record
        record.first_token = time.monotonic() - record.started
        events = self._events(first, queue, futures, answers)
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        return BoundedResponse(events, self.call.deadline.at + GRACE, headers)

    async def _events(
        self,
        first: ProgressOf | None,
        queue: ProgressQueue,
        futures: "Sequence[asyncio.Future[Answer]]",
        answers: "asyncio.Future[list[Answer]]",
    ) -> AsyncGenerator[bytes | memoryview]:
        """Yield the events, then the whole answer or the problem that prevented it.

        If the client leaves, this generator is closed at a `yield`, and cancels the entries.
        """
        writer, received = self.open_writer(self), [first]
        try:
            while received[-1] is not None:
                yield await writer.write(received) or PING
                received = await self._receive(queue)
            if last := await writer.write(received):
                yield last
            self.call.note(answers.result())
            if self.complete:
                async with aclosing(pings(self.complete(answers.result()))) as waiting:
                    async for ping in waiting:
                        yield ping
            async for piece in writer.finish(answers.result()):
                yield piece
        except HeedError as error:
            yield writer.fail(error)
        finally:
            if not answers.done() and not self.call.record.error:
                self.call.record.error = Abandoned("the client left its stream")
            cancel_all(futures)

    async def _receive(self, queue: ProgressQueue) -> list[ProgressOf | None]:
        """Wait for progress and return all that is there, or some MOST_WRITTEN, to be sent
        together; return empty progress after PING_AFTER seconds. Raise DeadlineExceeded."""
        left = self.call.left
        try:
            async with asyncio.timeout(min(PING_AFTER, left)):
                received = [await queue.get()]
        except TimeoutError:
            if left > PING_AFTER:
                return [(0, [])]
            raise self.call.too_late() from None
        size = 0
        while (last := received[-1]) and size < MOST_WRITTEN and not queue.empty():
            size += progress_size(last[1])
            received.append(queue.get_nowait())
        return received


async def pings(work: Awaitable[None]) -> AsyncGenerator[bytes]:
    """Yield PING after each PING_AFTER seconds in which `work` has not ended. Raise its errors;
    cancel it if the generator is closed."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=PING_AFTER))[0]:
            yield PING
        task.result()
    finally:
        task.cancel()


class BoundedResponse(StreamingResponse):
    """Events that are cut off at `until`, which only happens if the client has stopped reading."""

    def __init__(
        self, events: AsyncGenerator[bytes | memoryview], until: float, headers: dict[str, str]
    ) -> None:
        super().__init__(events, headers=headers, media_type=EVENT_STREAM)
        self._until = until

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._until):
                await super().__call__(scope, receive, send)


def write_event(name: str, content: bytes) -> bytes:
    """Return an event whose data is JSON, which has no line breaks."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), escape_line_breaks(content))


def escape_line_breaks(content: bytes) -> bytes:
    """Return JSON that no reader takes for several lines."""
    if content.isascii():
        return content
    for character, escape in LINE_BREAKS:
        content = content.replace(character, escape)
    return content


async def write_limited(
    work: Callable[[], Limited], size: int, limiter: CapacityLimiter
) -> Limited:
    """Run `work` in a thread, as soon as `limiter` lets it, or inline when it is too small to be
    worth the switch."""
    return work() if size <= LITTLE else await to_thread.run_sync(work, limiter=limiter)


class EventWriter:
    """Turns the progress of entries, in ids, into events with text, and their end into the last
    event."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._model = stream.model
        self._entries = stream.entries
        self._fields = stream.sources.event_fields  # of the events of each entry
        self._readers: dict[tuple[int, int], Reader] = {}  # by entry, hypothesis
        self._sent: dict[int, BeamProgress] = {}  # the last of each entry

    async def write(self, received: Sequence[ProgressOf | None]) -> bytes:
        """Return the events, one after the other; empty if nothing is new."""
        news = [each for each in received if each]
        size = sum(progress_size(progress) for _, progress in news)
        limiter = self._stream.call.service.events
        return await write_limited(
            lambda: b"".join(self._write(*each) for each in news), size, limiter
        )

    async def finish(self, answers: Sequence[Answer]) -> AsyncGenerator[bytes | memoryview]:
        """Yield the event of the whole answer in pieces, since it may be large."""
        size = sum(answer.size for answer in answers) + self._stream.faults.size
        yield b"event: done\ndata: "
        service = self._stream.call.service
        limiter = service.cores if size > LARGE_ANSWER else limiter_of(service.classes, size)
        for piece in await write_limited(lambda: self._write_in_line(answers), size, limiter):
            yield piece
        yield b"\n\n"

    def _write_in_line(self, answers: Sequence[Answer]) -> list[bytes]:
        pieces = to_json_pieces(self._stream.write(answers))
        return [escape_line_breaks(each) for each in pieces]

    def fail(self, error: HeedError) -> bytes:
        """Return the event of the problem that ends the stream."""
        return write_event("error", problem(self._stream.call, error))

    def _write(self, entry: int, progress: Progress, /) -> bytes:
        if isinstance(progress, BeamProgress):
            return self._write_beam(entry, progress)
        tokens = (self._token(entry, event) for event in progress)
        return b"".join(write_event("token", to_json(token)) for token in tokens)

    def _write_beam(self, entry: int, progress: BeamProgress) -> bytes:
        if progress == self._sent.get(entry):
            return b""
        self._sent[entry] = progress
        decode, prefix = self._model.target.decode, self._entries[entry].prefix
        stable, best = (decode([*prefix, *ids], goes_on=True).text for ids in progress)
        beam = {**self._fields[entry], "stable": stable, "tentative": best}
        return write_event("beam", to_json(beam))

    def _token(self, entry: int, event: TokenProgress) -> dict[str, Any]:
        """Return a token with the text that it adds to those of the earlier tokens."""
        key, target = (entry, event.hypothesis), self._model.target
        text = ""
        if key not in self._readers:
            self._readers[key] = target.reader()
            text = "".join(map(self._readers[key], self._entries[entry].prefix))
        text += self._readers[key](event.token_id)
        if event.token_id in self._model.manifest.eos_ids:
            text += self._readers[key].rest()
        token: dict[str, Any] = {
            **self._fields[entry],
            "hypothesis": event.hypothesis,
            "text": text,
            "token": target.name(event.token_id),
            "token_id": event.token_id,
            "log_prob": np.float32(event.log_prob),
        }
        if event.top_log_probs is not None:
            token["top_log_probs"] = write_alternatives(self._model, event.top_log_probs)
        return token
