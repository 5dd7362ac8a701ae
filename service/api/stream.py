"""/v1/decode as server-sent events: what is certain, as soon as it is."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from fastapi import Request, Response
from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.types import Receive, Scope, Send

from service.api.serialize import alternatives
from service.api.steps import drop, gathered, submit
from service.engine.messages import Answer, Entry
from service.engine.model import Model
from service.errors import DeadlineExceeded, HeedError
from service.formats.json import to_json, to_json_pieces
from service.http.problems import problem
from service.http.waiting import compute, settings_of, wait_for
from service.search.protocol import BeamProgress, Progress, TokenEvent

PING_AFTER = 10.0  # seconds without an event
GRACE = 5.0  # seconds after the deadline to read what has been sent
Write = Callable[[Sequence[Answer]], dict[str, Any]]
Told = tuple[int, Progress] | None  # None: all entries have ended


@dataclass(frozen=True, slots=True)
class Stream:
    """The events of one request. `write` makes the document that is sent without streaming."""

    request: Request
    model: Model
    entries: Sequence[Entry]
    write: Write

    async def respond(self) -> Response:
        """Waits for the first event: until then errors are raised, and answered as usual."""
        told: asyncio.Queue[Told] = asyncio.Queue()
        deadline = time.monotonic() + settings_of(self.request).timeout

        def tell(place: int, progress: Progress) -> None:
            told.put_nowait((place, progress))

        each = submit(self.request, self.model, self.entries, tell)
        answers = gathered(each)
        answers.add_done_callback(lambda _: told.put_nowait(None))
        with ExitStack() as unless_answered:
            unless_answered.callback(drop, each)
            first = await wait_for(self.request, asyncio.ensure_future(told.get()))
            if first is None:
                answers.result()
            unless_answered.pop_all()
        events = self._events(first, told, each, answers, deadline)
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        return Bounded(events, deadline + GRACE, headers)

    async def _events(
        self,
        first: Told,
        told: asyncio.Queue[Told],
        each: "Sequence[asyncio.Future[Answer]]",
        answers: "asyncio.Future[list[Answer]]",
        deadline: float,
    ) -> AsyncGenerator[bytes | memoryview]:
        """Ended by the client, at any point: then its rows are given up."""
        texts, came = Texts(self.model, self.entries), [first]
        try:
            while came[-1] is not None:
                yield await texts.events(came) or format_sse_event(comment="ping")
                came = [await self._next(told, deadline)]
                while came[-1] is not None and not told.empty():
                    came.append(told.get_nowait())
            if last := await texts.events(came):
                yield last
            done = answers.result()
            size = sum(answer.size for answer in done)
            yield b"event: done\ndata: "
            for piece in await compute(lambda: to_json_pieces(self.write(done)), size):
                yield piece
            yield b"\n\n"
        except HeedError as error:
            yield sse("error", problem(self.request, error))
        finally:
            drop(each)

    async def _next(self, told: asyncio.Queue[Told], deadline: float) -> Told:
        """Empty when nothing comes for a while. Raises DeadlineExceeded."""
        left = deadline - time.monotonic()
        try:
            async with asyncio.timeout(min(PING_AFTER, left)):
                return await told.get()
        except TimeoutError:
            if left > PING_AFTER:
                return 0, []
            limit = settings_of(self.request).timeout
            raise DeadlineExceeded(f"not done within {limit:g} seconds") from None


class Bounded(EventSourceResponse):
    """Cut off at a moment, which only happens where the client has stopped to read."""

    def __init__(
        self, events: AsyncGenerator[bytes | memoryview], until: float, headers: dict[str, str]
    ) -> None:
        super().__init__(events, headers=headers)
        self._until = until

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._until):
                await super().__call__(scope, receive, send)


def sse(name: str, content: bytes) -> bytes:
    return format_sse_event(event=name, data_str=content.decode())


class Texts:
    """Progress in ids -> events in text."""

    def __init__(self, model: Model, entries: Sequence[Entry]) -> None:
        self._model = model
        self._entries = entries
        self._readers: dict[tuple[int, int], Callable[[int], str]] = {}
        self._standing: dict[int, BeamProgress] = {}  # what was last said of a result

    async def events(self, came: Sequence[Told]) -> bytes:
        """One after the other, to be sent together."""
        told = [one for one in came if one]
        size = sum(sum(map(len, each)) if isinstance(each, BeamProgress) else 1 for _, each in told)
        return await compute(lambda: b"".join(self._write(*one) for one in told), size)

    def _write(self, place: int, progress: Progress) -> bytes:
        if not isinstance(progress, BeamProgress):
            return b"".join(sse("token", to_json(self._token(place, taken))) for taken in progress)
        if progress == self._standing.get(place):
            return b""
        self._standing[place] = progress
        decode, prefix = self._model.target.decode, self._entries[place].prefix
        stable, best = (decode([*prefix, *ids]).text for ids in progress)
        return sse("beam", to_json({"result": place, "stable": stable, "tentative": best}))

    def _token(self, place: int, taken: TokenEvent) -> dict[str, Any]:
        """The texts of one hypothesis, one after the other, are its whole text."""
        key, target = (place, taken.hypothesis), self._model.target
        text = ""
        if key not in self._readers:
            self._readers[key] = target.reader()
            text = "".join(map(self._readers[key], self._entries[place].prefix))
        event: dict[str, Any] = {
            "result": place,
            "hypothesis": taken.hypothesis,
            "text": text + self._readers[key](taken.token_id),
            "token": target.name(taken.token_id),
            "token_id": taken.token_id,
            "log_prob": np.float32(taken.log_prob),
        }
        if taken.top_log_probs:
            event["top_log_probs"] = alternatives(self._model, taken.top_log_probs)
        return event
