"""An open loop against a server that refuses some requests."""

import asyncio
import contextlib
import itertools

import pytest

from benchmarks.kit.http_client import Client, Refused
from benchmarks.load.load import Asked, open_loop

RATE, SECONDS = 200.0, 0.5


async def serve(answers):
    """Return a server that gives these statuses in turn, the list of those that it gave, and that
    of its connections."""
    given, turns, connections = [], itertools.cycle(answers), []

    async def answer(reader, writer):
        connections.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError):  # the client has closed
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length))
                given.append(next(turns))
                writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 2\r\n\r\n{}" % given[-1])
        writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", 0), given, connections


async def load(answers):
    server, given, _ = await serve(answers)
    async with server:
        port = server.sockets[0].getsockname()[1]
        return await open_loop(port, SECONDS, RATE, Asked(["word"], 1)), given


@pytest.mark.parametrize("answers", [[200], [200, 429], [429, 200, 429]], ids=str)
def test_refused_requests_are_counted_apart(answers):
    found, given = asyncio.run(load(answers))
    assert found["refused"] == given.count(429) / len(given)


def test_the_connection_of_a_refused_request_carries_the_next_one():
    async def ask():
        server, given, connections = await serve([429, 429, 200])
        async with server, Client(server.sockets[0].getsockname()[1], 1) as client:
            for method in (client.decode, client.stream):
                with pytest.raises(Refused):
                    await method("word")
            await client.decode("word")
        return given, len(connections)

    assert asyncio.run(ask()) == ([429, 429, 200], 1)


def test_another_error_ends_the_measurement():
    with pytest.raises(ExceptionGroup, match="TaskGroup") as raised:
        asyncio.run(load([200, 500]))
    assert raised.group_contains(ConnectionError, match="500")
