"""Requests on raw sockets, each on a connection of its own, in one thread.

The client shares the cores with the service that it overloads: asyncio would double its cost.
"""

import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

RECEIVE = 1 << 16  # bytes
Ended = Callable[[float, bytes], None]  # gets the seconds that an answer took, and all its bytes


def write_request(path: str, body: bytes | None) -> bytes:
    """Return a request after whose answer the service closes the connection."""
    method = "GET" if body is None else "POST"
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    if body is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{head}\r\n".encode() + (body or b"")


def status_of(answer: bytes) -> int:
    """Return the status of an answer, 0 if there is none."""
    return int(answer[9:12]) if answer else 0


@dataclass(slots=True)
class InFlight:
    connection: socket.socket
    request: bytes
    ended: Ended
    sent: float  # when
    parts: list[bytes] = field(default_factory=list[bytes])


class RawClient:
    """Sends requests to a port of this machine and calls back with each answer, which is empty if
    the connection breaks."""

    def __init__(self, port: int) -> None:
        self._address = ("127.0.0.1", port)
        self._poll = select.epoll()
        self._in_flight: dict[int, InFlight] = {}

    def __len__(self) -> int:
        return len(self._in_flight)

    def send(self, request: bytes, ended: Ended) -> None:
        connection = socket.socket()
        connection.setblocking(False)
        began = time.perf_counter()
        connection.connect_ex(self._address)
        self._in_flight[connection.fileno()] = InFlight(connection, request, ended, began)
        try:
            connection.send(request)
            events = select.EPOLLIN
        except BlockingIOError:  # the service's backlog is full: the system connects later
            events = select.EPOLLOUT
        except ConnectionError:
            events = select.EPOLLIN  # receiving fails as well
        self._poll.register(connection.fileno(), events)

    def wait(self, until: float) -> None:
        """Receive what has arrived, or will arrive first before this moment of perf_counter()."""
        for number, events in self._poll.poll(max(0.0, until - time.perf_counter())):
            if events == select.EPOLLOUT:
                self._in_flight[number].connection.send(self._in_flight[number].request)
                self._poll.modify(number, select.EPOLLIN)
            else:
                self._receive(number)

    def wait_until(self, moment: float) -> None:
        """Receive what arrives before this moment of perf_counter()."""
        self.wait(moment)
        while time.perf_counter() < moment:
            self.wait(moment)

    def drain(self, seconds: float) -> None:
        """Wait for all answers, at most `seconds`. Later ones count as broken."""
        until = time.perf_counter() + seconds
        while self._in_flight and time.perf_counter() < until:
            self.wait(until)
        for number in [*self._in_flight]:
            self._end(number, b"")

    def _receive(self, number: int) -> None:
        found = self._in_flight[number]
        try:
            while part := found.connection.recv(RECEIVE):
                found.parts.append(part)
        except BlockingIOError:
            return
        except ConnectionError:
            found.parts.clear()
        self._end(number, b"".join(found.parts))

    def _end(self, number: int, answer: bytes) -> None:
        found = self._in_flight.pop(number)
        found.connection.close()
        found.ended(time.perf_counter() - found.sent, answer)
