"""The engine's end of the connection, whose client is played by the test."""

import pickle
import signal
import socket
import threading
from contextlib import suppress
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from service.engine.__main__ import MOST_NUMBERS, EngineServer
from service.engine.engine import Engine
from service.engine.scheduler import Job
from service.errors import PassFailed, Unavailable
from service.search.options import SearchOptions
from service.search.protocol import TokenProgress
from service.wire import (
    FRAME,
    FRAME_HEADER,
    REPLIES,
    Answer,
    AskStatus,
    Cancel,
    Close,
    Entry,
    Submit,
)
from tests.service.engine.clients import SETTINGS, Peer, engine_process, entries, submit


class Last:
    """Tells when it is pickled, as the last part of a message."""

    def __init__(self):
        self.pickled = threading.Event()

    def __reduce__(self):
        self.pickled.set()
        return str, ()


def test_the_frames_of_messages_take_turns():
    """Nobody reads before both are sent. One frame fills the socket: each next one is sent when
    the one before is read, and a short message does not wait for the end of a long one."""
    ours, theirs = socket.socketpair()
    server = EngineServer(theirs)
    sent = {number: (bytes(count * FRAME), Last()) for number, count in ((1, 100), (2, 5))}
    senders = [threading.Thread(target=server.send, args=each) for each in sent.items()]
    with ours, theirs, ours.makefile("rb") as incoming:
        for sender, (_, last) in zip(senders, sent.values(), strict=True):
            sender.start()
            assert last.pickled.wait(60)
        frames = []
        while sum(not more for _, more, _ in frames) < 2:
            frames.append(read_frame(incoming))
        for sender in senders:
            sender.join()
    for number, (content, _) in sent.items():
        arrived = b"".join(part for owner, _, part in frames if owner == number)
        assert pickle.loads(arrived) == (content, "")
    places = [place for place, (number, *_) in enumerate(frames) if number == 2]
    assert {after - before for before, after in pairwise(places)} == {2}
    assert places[-1] < len(frames) - 1


def read_frame(incoming):
    length, more, number = FRAME_HEADER.unpack(incoming.read(FRAME_HEADER.size))
    return number, more, incoming.read(length)


@pytest.mark.parametrize("error", [pickle.PicklingError, TypeError, AttributeError, MemoryError])
def test_an_answer_that_cannot_be_sent_fails_its_entry(error):
    """Whoever waits hears of it at once, and others get theirs."""

    class Stubborn:
        def __reduce__(self):
            raise error("no")

    ours, theirs = socket.socketpair()
    server = EngineServer(theirs)
    with ours, theirs:
        server.send(1, Answer(memory=Stubborn()))
        server.send(2, Answer(seconds={"queue": 0.5}))
        arrived = Peer(ours).replies(2)
    assert type(arrived[1]) is PassFailed
    assert arrived[2].seconds == {"queue": 0.5}


def finish(server, number, outcome, *progress):
    """Report progress of a new job, then its outcome."""
    job = Job(Entry(np.array([4])), on_progress=partial(server._report, number))
    server._jobs[number] = job
    job.result.add_done_callback(partial(server._answer, number))
    for each in progress:
        job.report(each)
    job.finish(outcome)


def test_a_refusal_of_many_entries_is_one_message(tiny_bundle):
    """Clients that are refused come again soon."""
    ours, theirs = socket.socketpair()
    server, engine = EngineServer(theirs), Engine(tiny_bundle, SETTINGS)
    engine.start()
    engine.close()
    asked = list(enumerate(entries(256), start=1))
    with ours, theirs, ours.makefile("rb") as incoming:
        server._obey(engine, iter([Submit(asked, "", 0.0, 60.0)]))
        number, more, content = read_frame(incoming)
    assert (number, more) == (REPLIES, False)
    replies = dict(pickle.loads(content))
    assert [*replies] == [number for number, _ in asked]
    assert {type(each) for each in replies.values()} == {Unavailable}
    assert len(content) < 10_000


def test_what_a_pass_adds_to_many_entries_is_one_message():
    """In the order in which it came about: each entry's progress before its answer."""
    ours, theirs = socket.socketpair()
    server = EngineServer(theirs)
    for number in range(1, 65):
        finish(server, number, Answer(seconds={"queue": number}), [TokenProgress(0, 5, -0.5, [])])
    with ours, theirs, ours.makefile("rb") as incoming:
        server.send_collected()
        number, more, content = read_frame(incoming)
    assert (number, more) == (REPLIES, False)
    replies = pickle.loads(content)
    assert [number for number, _ in replies] == [i for i in range(1, 65) for _ in range(2)]
    assert {type(content) for _, content in replies[::2]} == {list}
    assert [content.seconds["queue"] for _, content in replies[1::2]] == [*range(1, 65)]


def test_replies_with_many_numbers_share_no_frame():
    """It would be read as slowly as it is long."""
    ours, theirs = socket.socketpair()
    server = EngineServer(theirs)
    large = [TokenProgress(0, 5, -0.5, [(5, -0.5)] * MOST_NUMBERS)]
    for number in (1, 2, 3):
        finish(server, number, Answer(), large)
    with ours, theirs, ours.makefile("rb") as incoming:
        server.send_collected()
        messages = [pickle.loads(read_frame(incoming)[2]) for _ in range(4)]
    assert [[number for number, _ in each] for each in messages] == [[1], [1, 2], [2, 3], [3]]


def test_a_long_answer_follows_its_progress_and_lets_short_ones_pass():
    ours, theirs = socket.socketpair()
    server = EngineServer(theirs)
    long = Answer(memory=np.zeros((20, FRAME), np.uint8))

    def work():
        finish(server, 1, long, [TokenProgress(0, 5, -0.5, [])])

    sender = threading.Thread(target=work)
    with ours, theirs, ours.makefile("rb") as incoming:
        sender.start()
        first = read_frame(incoming)
        assert pickle.loads(first[2])[0][0] == 1
        assert read_frame(incoming)[:2] == (1, True)
        finish(server, 2, Answer())
        neighbour = threading.Thread(target=server.send_collected)
        neighbour.start()
        rest = [read_frame(incoming)]
        while rest[-1][1] or rest[-1][0] == REPLIES:
            rest.append(read_frame(incoming))
        neighbour.join()
        sender.join()
    assert REPLIES in [number for number, *_ in rest[:-1]]


def test_an_answer_that_cannot_be_pickled_does_not_harm_those_beside_it():
    class Stubborn:
        def __reduce__(self):
            raise TypeError("no")

    ours, theirs = socket.socketpair()
    server = EngineServer(theirs)
    finish(server, 1, Answer(seconds={"queue": 1}))
    finish(server, 2, Answer(seconds={"queue": Stubborn()}), [TokenProgress(0, 5, -0.5, [])])
    finish(server, 3, Answer(seconds={"queue": 3}))
    with ours, theirs:
        server.send_collected()
        client = Peer(ours)
        arrived = [client.receive() for _ in range(4)]
    assert [number for number, _ in arrived] == [1, 2, 2, 3]
    assert [type(content) for _, content in arrived] == [Answer, list, PassFailed, Answer]


def long_entries(count):
    """Entries that are decoded for all steps that the model has: to cancel one takes no time."""
    return entries(count, max_new_tokens=40, min_new_tokens=40)


def test_an_engine_obeys_orders_until_it_has_finished(tiny_bundle):
    """Cancelled entries get no reply, and orders about unknown ones change nothing. Once it is to
    close, it refuses new requests whole, and obeys cancellations of accepted entries."""
    with engine_process(tiny_bundle) as (process, client, _):
        client.order(submit(10, entries(1)))
        assert len(client.replies(1)[10].hypotheses) == 4
        client.order(*map(Cancel, [10, 11, 11, 999]))
        client.order(submit(100, long_entries(60)), *map(Cancel, range(100, 130)))
        assert client.replies(30).keys() == {*range(130, 160)}
        status = None
        while status is None or status.rows:  # cancelled rows leave at the next step
            client.order(AskStatus(2))
            status = client.replies(1)[2]
        assert status.ready
        late = submit(300, entries(3))
        client.order(submit(200, long_entries(90)), Close(), late, *map(Cancel, range(201, 290)))
        last = client.rest()
        assert len(last[200].hypotheses) == 4
        assert len(last) < 90  # some were cancelled before they were finished
        assert {type(last[number]) for number in (300, 301, 302)} == {Unavailable}
        assert process.wait(60) == 0


@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGINT])
def test_an_engine_ends_when_its_client_is_gone_and_leaves_signals_to_it(tiny_bundle, number):
    """A signal to all processes of a service fails no accepted entry."""
    with engine_process(tiny_bundle) as (process, client, connection):
        if number:
            client.order(submit(1, entries(80, max_new_tokens=40)))
            process.send_signal(number)
            assert all(len(each.hypotheses) == 4 for each in client.replies(80).values())
        connection.close()
        assert process.wait(60) == 0


def test_a_worker_that_ends_unasked_ends_its_engine(tiny_bundle):
    """An entry of complex length breaks the loop of whichever worker takes it."""
    broken = Entry(np.array([4]), SearchOptions(max_new_tokens=1j))
    with engine_process(tiny_bundle) as (process, client, _):
        client.order(submit(1, [*entries(5), broken, *entries(5)]))
        assert process.wait(60) == 1
        outcomes = {}
        with suppress(EOFError):
            while True:
                outcomes |= client.replies(1)
    assert {*map(type, outcomes.values())} <= {Answer, Unavailable}
    assert type(outcomes.get(6)) in {type(None), Unavailable}


def test_an_answer_is_sent_although_no_pass_follows():
    """A worker may finish a job, and its last pass, before the order's thread can ask for it."""

    class Hasty:
        queue = property(lambda self: self)

        def put(self, jobs, *_):
            for job in jobs:
                job.finish(Answer(seconds={"queue": 0.5}))

    ours, theirs = socket.socketpair()
    server = EngineServer(theirs)
    with ours, theirs:
        server._submit(Hasty(), Submit([*enumerate(entries(2), 1)], "a", 0.0, 60.0))
        arrived = Peer(ours).replies(2)
    assert [each.seconds for each in arrived.values()] == [{"queue": 0.5}] * 2
