"""An HTTP client that costs little, since it shares the cores with the server it measures."""

import asyncio
import contextlib
import json
import time
from typing import Self

PATIENCE = 120.0  # seconds, twice what the service may take


class Refused(Exception):
    """The server has too much to do: status 429."""


class Client:
    """Connections to one server, each of which carries one request at a time.

    Texts are decoded to at most `new_tokens` tokens. Leaving the context closes the connections.
    """

    def __init__(self, port: int, new_tokens: int) -> None:
        self._port, self._new_tokens = port, new_tokens
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._opened: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self._opened:
            writer.close()
            with contextlib.suppress(ConnectionError):  # the server has closed it
                await writer.wait_closed()

    async def decode(self, text: str) -> None:
        """Wait for the whole answer. Raise Refused, or ConnectionError for another status than
        200."""
        await self._read(*await self._send(text))

    async def stream(self, text: str) -> list[float]:
        """Return when each token came. Raises what `decode` does."""
        reader, writer, _ = await self._send(text, stream=True)
        moments: list[float] = []
        while (line := await reader.readline()) != b"0\r\n":  # the last chunk is empty
            if line.startswith(b"event: token"):
                moments.append(time.perf_counter())
        await reader.readline()
        self._idle.append((reader, writer))
        return moments

    async def _read(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: list[bytes]
    ) -> None:
        """Read a body to its end, so that the connection can carry another request."""
        (length,) = (line for line in headers if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))
        self._idle.append((reader, writer))

    async def _send(
        self, text: str, stream: bool = False
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, list[bytes]]:
        """Return the connection, with the body still to be read, and the headers."""
        wanted = {"source": text, "stream": stream, "max_new_tokens": self._new_tokens}
        body = json.dumps(wanted).encode()
        head = (
            "POST /v1/decode HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        while True:
            reader, writer, is_new = await self._connect()
            try:
                writer.write(head.encode() + body)
                answer = await reader.readuntil(b"\r\n\r\n")
                break
            except (ConnectionError, asyncio.IncompleteReadError):
                if is_new:  # else the server closed the idle connection at this moment
                    raise
        status, *headers = answer.lower().split(b"\r\n")
        if b" 429 " in status:
            await self._read(reader, writer, headers)
            raise Refused("the server has too many requests in progress: use fewer connections")
        if b" 200 " not in status:
            raise ConnectionError(
                f"POST /v1/decode was answered {status.decode()!r} instead of 200: send"
                f" {body.decode()} with curl to see the reason"
            )
        return reader, writer, headers

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bool]:
        """Return an idle connection that the server has not closed, or a new one; and whether it is
        new."""
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof():
                return reader, writer, False
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._opened.append(writer)
        return reader, writer, True


async def ask(port: int, path: str, body: bytes | None) -> tuple[int, dict[str, str], bytes]:
    """Send one request on a new connection. Return status 0 for one that breaks, or that gets no
    answer within PATIENCE seconds."""
    writer: asyncio.StreamWriter | None = None
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        method = "GET" if body is None else "POST"
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}\r\n".encode() + (body or b""))
        async with asyncio.timeout(PATIENCE):
            answer = await reader.read(-1)
    except OSError:  # TimeoutError is one
        return 0, {}, b""
    finally:
        if writer:
            writer.close()
    top, _, content = answer.partition(b"\r\n\r\n")
    first, *lines = top.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(first.split()[1]) if top else 0, headers, content
