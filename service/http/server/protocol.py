"""httptools under uvicorn, with limits on client time, header bytes, requests sent at once and open
connections, which uvicorn lacks. An error that ends a connection leaves the requests before it
their answers."""

import asyncio
import select
import socket
import struct
import sys
from collections.abc import Callable, Sized
from http import HTTPStatus
from typing import Any

from uvicorn import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from service.errors import HeedError, Unparsable
from service.http.messages.problems import HttpError
from service.http.server.head import Parser, check_head, check_upgrade
from service.http.server.refusals import Refusals

MOST_FRAMING = 64 << 10  # bytes
TOO_LONG = (
    f"the request line and headers exceed {MOST_FRAMING} bytes, which is the limit: send fewer"
)
MOST_HEADERS = 256  # of a request: whoever looks for one goes through all of them
MOST_PIPELINED = 128  # requests of one connection that wait for the answer to an earlier one
LOOKS = 4  # at an unread answer, in the seconds that a client may read nothing
LEFT_AFTER = 0.5  # seconds between looks whether a client that sends no more has left
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
NO_LINGER = struct.pack("ii", 1, 0)  # value of SO_LINGER: closing discards what is not sent


class Connections:
    """The open connections of a server, the limits on each of them, and who refuses requests.

    `waiting` holds those that have not sent a whole request since they were opened, or since their
    last answer; those that wait longest come first.
    """

    refusals: Refusals  # set once there is an application

    def __init__(self, most: int, idle_timeout: float, timeout: float) -> None:
        self.most = most
        self.idle_timeout = idle_timeout  # seconds
        self.timeout = timeout  # seconds
        self.open = 0  # counted from accept()
        self.coming = 0  # of these, not yet set up
        self.waiting: dict[Protocol, None] = {}

    def make_room(self) -> bool:
        """Close the connection whose request has been awaited for longest. Return False if all have
        sent theirs."""
        oldest = next(iter(self.waiting), None)
        if oldest:
            del self.waiting[oldest]
            oldest.drop()
        return oldest is not None


class PipelineFlow(FlowControl):
    """Reads no more requests while some wait already: uvicorn would read on at each answer."""

    def __init__(self, transport: asyncio.Transport, pipeline: Sized) -> None:
        super().__init__(transport)
        self._pipeline = pipeline

    def resume_reading(self) -> None:
        if not self._pipeline:
            super().resume_reading()


class Protocol(HttpToolsProtocol):
    """One connection.

    It is closed if it sends no first request for `idle_timeout` seconds, or a part of its headers
    for that long; after an answer, if it sends nothing for `timeout_keep_alive` seconds. It is
    dropped if its client reads nothing of an answer for `timeout` seconds. It gets 400 if its
    request line, headers, chunk sizes and trailers take more than MOST_FRAMING bytes beyond the
    size of the body: the parser keeps them all, and takes quadratic time for a long one.

    Bytes that are not HTTP, and the client's closing its side, end the connection after the answers
    to the requests before.
    """

    # Bytes of the request line, headers, chunk sizes and trailers, minus those of the body
    _framing = 0
    _begun = 0  # requests of which bytes were received at once, the unfinished one included
    _finished = True  # whether no request is being received
    _in_body = False  # whether the headers of the request that is being received are complete
    _due = 0  # answers that are not complete
    _partial = False  # whether a part of a request's headers has arrived while no answer is due
    _ended = False  # whether no more requests are taken
    _refusal: HeedError | None = None  # what is answered at the end
    _overloaded = b""  # the answer to a request that is refused because of others
    _leaving: asyncio.TimerHandle | None = None  # runs if the client may have left
    _heading: asyncio.TimerHandle | None = None  # runs while headers are awaited
    _watching: asyncio.TimerHandle | None = None  # runs while an answer is not read whole
    _unread = 0  # bytes of the answer
    _read_at = 0.0  # when the client last read

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: Connections,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.parser = Parser(self)
        self._limits = limits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._limits.coming -= 1
        transport.set_write_buffer_limits(high=0)  # writing is paused while anything is unread
        self.flow = PipelineFlow(transport, self.pipeline)
        self._limits.waiting[self] = None
        self._file = transport.get_extra_info("socket").fileno()
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # else it would keep all this until it runs
        self._limits.open -= 1
        self._limits.waiting.pop(self, None)
        self._limits.refusals.expected.discard(self._file)
        cancel(self._heading)
        cancel(self._watching)
        cancel(self._leaving)
        for name in ("_read_ready_cb", "_write_ready"):
            # methods by which asyncio's transport refers to itself, until garbage is collected
            vars(self.transport).pop(name, None)

    def drop(self) -> None:
        """Close the connection at once, and discard what its client has not read."""
        connection = self.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._ended and not self._overloaded:
            return None
        self._limits.refusals.expected.discard(self._file)
        if not self._due:
            if self._finished:  # else these may be of a body whose request was answered early
                self._partial = True
            if not self._heading:
                self._expect_headers()
        self._begun = int(not self._finished)
        super().data_received(data)
        self._framing = 0 if self._begun > 1 else self._framing + len(data)
        if self._overloaded:
            return self._turn_away()
        if self._framing > MOST_FRAMING and not self.transport.is_closing():
            self._in_body |= self._begun > 0 and self._finished  # its end came with these bytes
            self._end(Unparsable(TOO_LONG))
        return None

    def _turn_away(self) -> None:
        """Answer a request, and close the connection when its body has been read, the time for
        headers is over or what is not its body has too many bytes: a client whose connection closes
        while it sends does not read the answer."""
        if not self._ended:
            self._ended, self._partial = True, False
            self.transport.write(self._overloaded)
        if self._finished or self._framing > MOST_FRAMING:
            self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return whether the connection is kept. The client may only have closed its own side."""
        if not self._ended:
            self._end()
        if self.transport.is_closing() or self._overloaded:
            return False
        if not self._leaving:
            self._leaving = self.loop.call_later(LEFT_AFTER, self._look_whether_left)
        return True

    def on_message_begin(self) -> None:
        self._framing, self._finished = 0, False
        self._begun += 1
        if not (self._due or self._heading):  # it came with the end of an earlier body
            self._partial = True
            self._expect_headers()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Raise ValueError, which ends the connection, if there are too many headers."""
        if self._in_body:  # a trailer is not a header (RFC 9110, section 6.5.1)
            return
        if len(self.headers) >= MOST_HEADERS:
            raise ValueError(f"more than {MOST_HEADERS} headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Raise Unparsable, which ends the connection, for a head that is not HTTP/1.1 and if too
        many requests wait already. Refuse a request that would wait too long: the application takes
        several times as long to do it."""
        parser, headers, refusals = self.parser, self.headers, self._limits.refusals
        if self._overloaded:
            return None  # what follows a refused request is not answered
        if parser.should_upgrade():
            return check_upgrade(parser.get_method(), headers)
        check_head(parser.get_http_version(), self.url, headers)
        if len(self.url) + sum(len(name) + len(value) for name, value in headers) > MOST_FRAMING:
            raise Unparsable(TOO_LONG)  # the bytes received with it hold other requests, too
        if len(self.pipeline) >= MOST_PIPELINED:
            most = f"{MOST_PIPELINED} requests, which is the limit, wait on this connection"
            raise Unparsable(f"{most}: send the next after an answer")
        if parser.get_method() == b"POST" and not self._due and refusals.admission.crowded:
            self._overloaded = refusals.answer_overloaded(self.url, headers)
        if self._overloaded:
            self._in_body = True
            return None
        cancel(self._heading)
        self._heading, self._partial = None, False
        self._unset_keepalive_if_required()
        super().on_headers_complete()
        self._in_body, self._due = True, self._due + 1
        return None

    def on_body(self, body: bytes) -> None:
        self._framing -= 2 * len(body)
        if not self._overloaded:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # its headers are parsed again
        self._finished, self._in_body = True, False
        if self._overloaded:
            return
        if not self._due:  # it was answered before the end of its body
            cancel(self._heading)
            self._heading, self._partial = None, False
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        else:
            self._limits.waiting.pop(self, None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._due -= 1
        super().on_response_complete()
        if self._due or self.transport.is_closing():
            return
        if self._ended:
            self._close()
        else:
            self._await_request()

    def _await_request(self) -> None:
        """Wait for the next request; a part of its headers may have arrived before the answer."""
        if not self._finished and not self._in_body:
            self._unset_keepalive_if_required()
            self._partial = True
            self._expect_headers()
        self._limits.waiting.pop(self, None)
        self._limits.waiting[self] = None

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser has just raised an error for."""
        if self._overloaded:
            self._finished = True  # _turn_away, which comes next, answers and closes
            return
        error = sys.exception()
        why = (error and (error.__context__ or error)) or msg
        if not isinstance(why, HeedError):
            advice = "correct its line and headers"
            why = Unparsable(f"this is not a valid HTTP/1.1 request ({why}): {advice}")
        self._end(why)

    def _end(self, refusal: HeedError | None = None) -> None:
        """Take no more requests. Close after the answers to those that are complete; the one that
        is being received gets the refusal."""
        self._ended, self._refusal = True, refusal and refusal.forget_frames()
        if self._in_body:
            if self.pipeline:
                self.pipeline.popleft()  # it waits for its turn
                self._due -= 1
            elif self.cycle.response_started:  # another answer would be taken for the next one's
                return self.transport.close()
            else:
                self._due = 0
        return None if self._due else self._close()

    def _close(self) -> None:
        if self._refusal:
            self._refuse(self._refusal)
        else:
            self.transport.close()

    def _look_whether_left(self, asked: bool = False) -> None:
        """Drop the connection if its client has left, and not only closed its side.

        The machine of a client that has left resets the connection when anything is sent. If no
        answer has begun, an interim one is sent. HTTP/1.0 has none, so its client counts as gone.
        """
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket"), 0)  # only errors and resets
        silent = not (asked or self.pipeline or self._in_body or self.cycle.response_started)
        if poll.poll(0) or (silent and self.cycle.scope["http_version"] == "1.0"):
            return self.drop()
        if silent:
            self.transport.write(CONTINUE)
        again = asked or silent
        self._leaving = self.loop.call_later(LEFT_AFTER, self._look_whether_left, again)
        return None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread, self._read_at = self.transport.get_write_buffer_size(), self.loop.time()
        self._watching = self._soon(self._look)

    def resume_writing(self) -> None:
        super().resume_writing()
        cancel(self._watching)

    def _look(self) -> None:
        """Drop the connection if its client has stopped to read. Nothing is added to what it has
        not read while writing is paused."""
        unread, now = self.transport.get_write_buffer_size(), self.loop.time()
        if unread < self._unread:
            self._unread, self._read_at = unread, now
        if now - self._read_at >= self._limits.timeout:
            self.drop()
        else:
            self._watching = self._soon(self._look)

    def _soon(self, look: Callable[[], None]) -> asyncio.TimerHandle:
        return self.loop.call_later(self._limits.timeout / LOOKS, look)

    def _expect_headers(self) -> None:
        self._heading = self.loop.call_later(self._limits.idle_timeout, self._end_waiting)

    def _end_waiting(self) -> None:
        """Close the connection if the headers of a request have not arrived in time."""
        self._heading = None
        if self.transport.is_closing():
            return
        if self._partial:
            seconds = f"{self._limits.idle_timeout:g} seconds"
            why = f"the request line and headers did not arrive within {seconds}: send them faster"
            self._refuse(HttpError(HTTPStatus.REQUEST_TIMEOUT, why))
        else:
            self.transport.close()

    def _refuse(self, error: HeedError) -> None:
        """Answer with a problem document, and close the connection."""
        self.transport.write(self._limits.refusals.answer(error))
        self.transport.close()


def cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer:
        timer.cancel()
