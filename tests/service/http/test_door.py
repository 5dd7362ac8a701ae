"""A simulated service behind the door: one server, random arrivals, a clock that is only counted.

Oracle: a queue at k times its capacity must stay as busy as one at its capacity.
"""

import asyncio
import heapq
import json
import random
from collections import deque

import pytest

from service.errors import Overloaded
from service.http.middleware.door import SHORT_WAIT, Admission, Place
from service.pace import FEW
from tests.service.http.asgi import WHOLE, answer, door_before


class Simulation:
    """Requests that each take 1 / `capacity` seconds of one server, in the order of arrival."""

    def __init__(self, capacity, timeout=60.0):
        self.now, self.free, self.capacity = 0.0, 0.0, capacity
        self.admission = Admission(200, timeout, lambda: self.now)
        self.ends, self.waits, self.refused = [], [], []
        self.places = deque()

    def advance(self, until):
        while self.ends and self.ends[0] <= until:
            self.now = heapq.heappop(self.ends)
            self.places.popleft().leave(completed=True)
        self.now = until

    def arrive(self):
        try:
            self.admission.check(self.admission.timeout)
        except Overloaded as refusal:
            self.refused.append(refusal)
            return
        self.places.append(Place(self.admission))
        self.free = max(self.free, self.now) + 1 / self.capacity
        heapq.heappush(self.ends, self.free)
        self.waits.append(self.free - self.now)

    def run(self, rate, seconds, seed=0):
        """Let requests arrive at random, and return how many were answered meanwhile."""
        chance, until = random.Random(seed), self.now + seconds
        before = len(self.waits) - len(self.ends)
        while (arrival := self.now + chance.expovariate(rate)) < until:
            self.advance(arrival)
            self.arrive()
        self.advance(until)
        return len(self.waits) - len(self.ends) - before


@pytest.mark.parametrize(("capacity", "seconds"), [(20, 60), (100, 60), (1000, 10)])
@pytest.mark.parametrize("overload", [2, 4, 10])
def test_overload_keeps_the_server_busy_and_the_wait_short(capacity, seconds, overload):
    simulation = Simulation(capacity)
    answered = simulation.run(overload * capacity, seconds)
    assert answered >= 0.95 * seconds * capacity
    assert max(simulation.waits) <= max(200 / capacity, SHORT_WAIT) + 0.5
    assert simulation.refused


def test_a_slow_service_lets_in_what_it_answers_in_time():
    """As soon as it knows how slow it is: until then it has let in 200."""
    simulation = Simulation(capacity=1, timeout=60.0)
    simulation.run(10, 300)
    simulation.waits.clear()
    simulation.run(10, 600)
    assert 55 <= max(simulation.waits) <= 66


def test_pauses_between_loads_do_not_slow_the_pace():
    """Thirty-two clients ask again as soon as they are answered, in turns of a few seconds."""
    simulation = Simulation(capacity=300)
    for _ in range(20):
        until = simulation.now + 2
        for _ in range(32):
            simulation.arrive()
        while simulation.now < until:
            simulation.advance(simulation.ends[0])
            simulation.arrive()
        simulation.advance(simulation.now + 5)
    assert not simulation.refused


@pytest.mark.parametrize("seconds", [1, 10])
def test_requests_that_are_computed_together_refuse_nobody(seconds):
    """Each batch of 32 takes a while, and its requests leave at the same moment."""
    simulation = Simulation(capacity=1)
    for _ in range(30):
        for _ in range(32):
            simulation.arrive()
        simulation.ends = [simulation.now + seconds] * 32
        simulation.advance(simulation.now + seconds)
    assert not simulation.refused


@pytest.mark.parametrize("capacity", [0.1, 5, 300])
def test_nobody_is_refused_below_capacity(capacity):
    simulation = Simulation(capacity)
    simulation.run(0.7 * capacity, 2000 / capacity)
    assert not simulation.refused


def test_many_connections_of_quick_requests_are_let_in():
    """800 at once are answered in 0.2 seconds, so all of them may wait."""
    simulation = Simulation(capacity=4000)
    simulation.run(4000, 3)
    for _ in range(800):
        simulation.arrive()
    assert not simulation.refused


def test_a_rate_is_forgotten_when_it_no_longer_tells_anything():
    """After slow requests, a burst of quick ones is let in."""
    simulation = Simulation(capacity=1)
    simulation.run(2, 300)
    assert simulation.refused
    simulation.advance(simulation.now + 300)
    simulation.capacity, refused = 1000, len(simulation.refused)
    for _ in range(150):
        simulation.arrive()
    assert len(simulation.refused) == refused


def test_a_few_are_let_in_even_if_nothing_leaves():
    simulation = Simulation(capacity=1e-6)
    for _ in range(300):
        simulation.arrive()
    assert FEW <= simulation.admission.inside == 200


def test_the_time_to_come_back_is_when_there_will_be_room():
    simulation = Simulation(capacity=10)
    simulation.run(60, 60)
    retries = [refusal.retry_after for refusal in simulation.refused[100:]]
    assert all(isinstance(each, Overloaded) for each in simulation.refused)
    assert min(retries) >= 15  # 200 wait for 20 seconds, and a quarter of one is the limit
    assert max(retries) <= 25


def test_a_stale_rate_is_forgotten_in_spite_of_light_traffic():
    simulation = Simulation(capacity=0.2)
    simulation.run(2, 1200)
    simulation.advance(simulation.now + 1000)
    simulation.capacity = 1000
    simulation.run(3, 100)
    refused = len(simulation.refused)
    for _ in range(20):
        for _ in range(100):
            simulation.arrive()
        simulation.run(3, 5)
    assert len(simulation.refused) == refused


def test_a_service_that_hangs_takes_in_no_more_than_the_limit():
    """Even if it was so fast before that many more would have been let in."""
    simulation = Simulation(capacity=1000)
    simulation.run(3000, 5)
    simulation.ends = []
    simulation.advance(simulation.now + 3)
    simulation.admission.inside = 190
    for _ in range(100):
        simulation.arrive()
    assert simulation.admission.inside == 200


@pytest.mark.parametrize("stuck", [FEW, 60, 150])
def test_words_are_accepted_alongside_requests_that_they_overtake(stuck):
    """Such as large ones, or those that wait for memory. Words come once a second: their rate says
    how many arrive, and not how many could be answered."""
    simulation = Simulation(capacity=1000, timeout=10.0)
    large = [Place(simulation.admission) for _ in range(stuck)]
    simulation.run(1, 300)
    assert not simulation.refused
    for place in large:
        place.leave(completed=True)
    assert simulation.admission.inside == 0


def test_words_are_accepted_though_large_requests_are_completed_now_and_then():
    """These overtake nobody, and are many times slower than the words between them."""
    simulation = Simulation(capacity=1000)
    large = deque(Place(simulation.admission) for _ in range(40))
    for _ in range(60):
        large.popleft().leave(completed=True)
        large.append(Place(simulation.admission))
        simulation.run(0.4, 8)
    assert not simulation.refused


def test_requests_in_their_order_are_not_taken_for_overtaken_ones():
    """Twenty seconds of work are before each: one that has ten would come too late."""
    simulation = Simulation(capacity=10, timeout=60.0)
    simulation.run(30, 60)
    simulation.admission.timeout = 10.0
    simulation.refused.clear()
    simulation.arrive()
    assert len(simulation.refused) == 1


async def app(scope, receive, send):
    await receive()
    await respond(send)


async def respond(send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


def test_an_answer_that_nobody_reads_is_not_in_progress():
    """Nor is the rest of a stream. 60 of them keep no word waiting."""
    now = 0.0

    async def run():
        nonlocal now
        read = asyncio.Event()

        async def unread(scope, receive, send):
            await receive()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            if scope["path"] == "/unread":
                await read.wait()
            await send({"type": "http.response.body", "body": b""})

        door, admission = door_before(unread, most=200, clock=lambda: now)
        reading = [asyncio.create_task(answer(door, path="/unread")) for _ in range(60)]
        await asyncio.sleep(0)
        assert admission.inside == 0
        statuses = []
        for _ in range(45):
            now += 1
            statuses.append((await answer(door))[0])
        read.set()
        return statuses + [each[0] for each in await asyncio.gather(*reading)]

    assert set(asyncio.run(run())) == {200}


@pytest.mark.parametrize("ends", ["answered", "refused"])
def test_requests_that_wait_for_memory_are_not_in_progress(ends):
    """When they go on they are, one by one, and words that came meanwhile were let in."""

    async def run():
        memory = asyncio.Semaphore(0)
        inside = []

        async def large(scope, receive, send):
            await receive()
            if scope["path"] == "/large":
                with scope["state"]["terms"].aside():
                    await memory.acquire()
                    if ends == "refused":
                        raise Overloaded("no memory")
                inside.append(admission.inside)
            await respond(send)

        door, admission = door_before(large, most=20)
        waiting = [asyncio.create_task(answer(door, path="/large")) for _ in range(60)]
        await asyncio.sleep(0)
        assert admission.inside == 0
        words = [(await answer(door))[0] for _ in range(30)]
        for _ in waiting:
            memory.release()
        found = [each[0] for each in await asyncio.gather(*waiting)]
        assert admission.inside == 0
        assert inside == ([] if ends == "refused" else [1] * 60)
        return words, found

    words, found = asyncio.run(run())
    assert words == [200] * 30
    assert found == [200 if ends == "answered" else 429] * 60


def test_a_refusal_is_a_problem_that_says_when_to_come_back():
    door, admission = door_before(app)
    assert asyncio.run(answer(door))[0] == 200
    assert admission.inside == 0
    admission.inside = 20
    status, headers, body = asyncio.run(answer(door))
    assert (status, headers[b"retry-after"]) == (429, b"1")
    assert json.loads(body)["code"] == "overloaded"
    said = "the limit of 20 requests in progress is reached: try again in 1 second"
    assert json.loads(body)["detail"] == said
    assert asyncio.run(answer(door, "GET"))[0] == 200
    assert admission.inside == 20


def test_models_can_be_changed_while_all_else_is_refused():
    door, admission = door_before(app)
    admission.inside = 20
    assert asyncio.run(answer(door, path="/v1/models/first/unload"))[0] == 200
    assert admission.inside == 20


def test_of_many_that_arrive_together_as_many_are_accepted_as_there_is_room_for():
    async def run():
        ready = asyncio.Event()

        async def wait(scope, receive, send):
            await receive()
            await ready.wait()
            await app(scope, receive, send)

        door, admission = door_before(wait)
        asked = [asyncio.create_task(answer(door, messages=(WHOLE, WHOLE))) for _ in range(50)]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert admission.inside == 20
        ready.set()
        return [each[0] for each in await asyncio.gather(*asked)]

    assert asyncio.run(run()) == [200] * 20 + [429] * 30


def test_a_request_that_fails_leaves_its_place():
    async def fail(scope, receive, send):
        await receive()
        assert admission.inside == 1
        raise RuntimeError

    door, admission = door_before(fail)
    with pytest.raises(RuntimeError):
        asyncio.run(answer(door))
    assert admission.inside == 0


def test_a_body_that_never_arrives_takes_no_place():
    inside = []

    async def wait(scope, receive, send):
        for _ in range(2):
            await receive()
            inside.append(admission.inside)

    door, admission = door_before(wait)
    begun = {"type": "http.request", "body": b"{", "more_body": True}
    with pytest.raises(IndexError):  # nothing was sent
        asyncio.run(answer(door, messages=(begun, WHOLE)))
    assert inside == [0, 1]
    assert admission.inside == 0


@pytest.mark.parametrize(("status", "refused"), [(200, True), (422, False), (503, False)])
def test_only_completed_requests_tell_the_pace(status, refused):
    """Each takes 4 seconds: 32 in progress would take 128, and 17 seconds are the limit."""
    now = 0.0

    async def slow(scope, receive, send):
        nonlocal now
        await receive()
        now += 4
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    door, admission = door_before(slow, most=200, timeout=17.0, clock=lambda: now)
    admission.inside = FEW - 1
    admission.pace.enter(now, FEW)
    for _ in range(FEW):
        admission.inside = FEW
        assert asyncio.run(answer(door))[0] == status
    admission.inside = 2 * FEW
    assert (asyncio.run(answer(door))[0] == 429) == refused


def test_a_request_is_refused_by_its_own_time_limit():
    """32 in progress take about 32 seconds."""
    now = 0.0
    door, admission = door_before(app, most=200, clock=lambda: now)
    places = [Place(admission) for _ in range(32)]
    for _ in range(32):
        now += 1
        places.append(Place(admission))
        places.pop(0).leave(completed=True)
    for seconds, status in ((b"5", 429), (b"50", 200)):
        headers = [(b"x-request-timeout", seconds)]
        assert asyncio.run(answer(door, headers=headers))[0] == status
