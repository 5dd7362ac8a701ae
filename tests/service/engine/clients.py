"""Both ends of the connection between the HTTP process and an engine, and peers that play one."""

import asyncio
import socket
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager, suppress

import numpy as np

from service.attention import NO_ATTENTION
from service.search.options import SearchOptions
from service.serving.client import EngineClient
from service.settings.settings import Provider, Settings
from service.wire import REPLIES, Entry, FrameDecoder, Open, Opened, Submit, encode_message

SETTINGS = Settings(
    provider=Provider.cpu, max_rows=400, max_sources=100, threads=2, shutdown_timeout=600.0
)  # a slow machine must not kill an engine that closes


@asynccontextmanager
async def running(bundle):
    """A client whose engine runs."""
    client = EngineClient(bundle, SETTINGS)
    try:
        await client.start()
        yield client
    finally:
        await client.close()


def entries(count, max_new_tokens=9, selection=NO_ATTENTION, min_new_tokens=0):
    search = SearchOptions(
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        beam_size=4,
        num_hypotheses=4,
    )
    return [Entry(np.array([4, 5 + i % 4]), search, selection=selection) for i in range(count)]


class Peer:
    """Plays one end of a connection, message by message."""

    def __init__(self, connection):
        connection.settimeout(60)
        self._connection = connection
        self._decoder = FrameDecoder()
        self._received = []

    def send(self, number, message):
        self._connection.sendall(b"".join(encode_message(number, message)))

    def order(self, *orders):
        """Send orders as one piece, so that the other end gets them together."""
        frames = (frame for order in orders for frame in encode_message(0, order))
        self._connection.sendall(b"".join(frames))

    def receive(self):
        """Return the next order or reply, and its number."""
        while not self._received:
            data = self._connection.recv(1 << 18)
            if not data:
                raise EOFError
            for message in self._decoder.feed(data):
                content = message.load()
                together = message.number == REPLIES and type(content) is list  # not an order
                self._received += content if together else [(message.number, content)]
        return self._received.pop(0)

    def replies(self, count):
        """Return the next `count` replies by their numbers."""
        return dict(self.receive() for _ in range(count))

    def rest(self):
        """Return the replies until the other end closes the connection, by their numbers."""
        found = {}
        with suppress(EOFError):
            while True:
                number, message = self.receive()
                found[number] = message
        return found


@asynccontextmanager
async def fake_engine(bundle):
    """A client, and a peer that plays its engine, with the peer's end of the connection."""
    ours, theirs = socket.socketpair()
    client = EngineClient(bundle, SETTINGS)
    await asyncio.get_running_loop().create_unix_connection(lambda: client, sock=ours)
    with theirs:
        yield client, Peer(theirs), theirs


@contextmanager
def engine_process(bundle):
    """The process of an engine, and a peer that plays its client, with the peer's end."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "service.engine", str(theirs.fileno())]
    with theirs:
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    with process, ours:
        client = Peer(ours)
        client.order(Open(1, bundle, SETTINGS))
        assert isinstance(client.receive()[1], Opened)
        yield process, client, ours


def submit(first, entries):
    """An order to compute entries, numbered from `first`."""
    return Submit([*enumerate(entries, first)], "an-id", arrived=0.0, seconds=60.0)
