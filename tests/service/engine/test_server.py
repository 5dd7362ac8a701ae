"""The engine's end of the connection: long answers leave room for others."""

import pickle
import socket
import threading
import time
from functools import partial

import numpy as np
import pytest

from service.engine.__main__ import EngineServer
from service.errors import PassFailed
from service.wire.frames import FRAME, HEADER, FrameDecoder
from service.wire.messages import Answer, Entry


def test_other_messages_come_between_the_frames_of_a_long_one():
    """Each frame is read before the next is sent, and in between there is room for others."""
    ours, theirs = socket.socketpair()
    server = EngineServer(theirs)
    sender = threading.Thread(target=server._send, args=(1, b"x" * (20 * FRAME)))
    with ours, theirs, ours.makefile("rb") as incoming:
        sender.start()
        frames = [read_frame(incoming)]
        other = threading.Thread(target=server._send, args=(2, "short"))
        other.start()
        deadline = time.monotonic() + 10
        while (
            len(server._sending._line) < 2 and time.monotonic() < deadline
        ):  # nobody reads, nobody goes on
            time.sleep(0.001)
        while frames[-1][0] != 1 or frames[-1][1]:
            frames.append(read_frame(incoming))
        sender.join()
        other.join()
    numbers = [number for number, _, _ in frames]
    assert numbers.count(1) > 20
    assert 2 in numbers[:4]
    long = b"".join(content for number, _, content in frames if number == 1)
    assert pickle.loads(long) == b"x" * (20 * FRAME)


@pytest.mark.parametrize("error", [pickle.PicklingError, TypeError, AttributeError, MemoryError])
def test_an_answer_that_cannot_be_sent_fails_its_entry(error):
    """Whoever waits hears of it at once, and others get theirs."""

    class Stubborn:
        def __reduce__(self):
            raise error("no")

    ours, theirs = socket.socketpair()
    server = EngineServer(theirs)
    with ours, theirs:
        for number, answer in [(1, Answer(memory=Stubborn())), (2, Answer(seconds={"queue": 0.5}))]:
            server._entries[number] = entry = Entry(np.array([4]))
            entry.accept()
            entry.result.add_done_callback(partial(server._answer, number))
            entry.finish(answer)
        decoder, arrived = FrameDecoder(), {}
        ours.settimeout(10)
        while len(arrived) < 2:
            for message in decoder.feed(ours.recv(1 << 16)):
                arrived[message.number] = message.load()
    assert type(arrived[1]) is PassFailed
    assert arrived[2].seconds == {"queue": 0.5}


def read_frame(incoming):
    length, more, number = HEADER.unpack(incoming.read(HEADER.size))
    return number, more, incoming.read(length)
