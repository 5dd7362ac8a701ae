import dataclasses
import random
import weakref
from collections import Counter
from contextlib import suppress
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.queue import OVERTAKEN, Queue
from service.engine.scheduler import Job, Scheduler
from service.errors import DeadlineExceeded, Overloaded
from service.pace import FEW
from service.search.options import SearchOptions
from service.wire import Entry, Rest

SCHEDULER = Scheduler(
    max_batch_tokens=4096,
    max_pass_tokens=4096,
    max_logits_bytes=1 << 20,
    target_vocab_size=32,
)


def jobs(count, beam_size=1, tokens=9):
    search = SearchOptions(max_new_tokens=tokens, beam_size=beam_size)
    return [Job(Entry(np.array([4, 5]), search)) for _ in range(count)]


def test_abandoned_jobs_take_no_share_and_no_room():
    """At any place in the queue."""
    queue, left = Queue(SCHEDULER, 2), jobs(200)
    queue.put(wanted := jobs(8))
    queue.put(left)
    for each in left:
        each.result.cancel()
    queue.put(more := jobs(292))
    expected = [*in_turns([wanted, more])]
    assert queue.take(0, [], busy=False) == expected[:150]
    assert queue.take(1, [], busy=False) == expected[150:]


def in_turns(requests):
    """Yield the first job of each request, then the second of each that has one, and so on."""
    for place in range(max(map(len, requests), default=0)):
        yield from (request[place] for request in requests if place < len(request))


@given(st.lists(st.integers(1, 20), max_size=8))
def test_requests_take_turns(counts):
    queue, requests = Queue(SCHEDULER, 1), [jobs(count) for count in counts]
    for request in requests:
        queue.put(request)
    taken = []
    while len(taken) < sum(counts):
        taken += queue.take(0, [], busy=False)
    assert taken == [*in_turns(requests)]


@given(st.lists(st.integers(1, 9), min_size=1), st.booleans())
def test_the_longest_sources_of_a_request_come_first(lengths, streams):
    """Rows that are decoded together are padded to the longest; who reads a stream reads the first
    sources first."""
    search = SearchOptions(max_new_tokens=9)
    entries = [Entry(np.full(length, 4), search, streams=streams) for length in lengths]
    queue, taken = Queue(SCHEDULER, 1), []
    queue.put([*map(Job, entries)])
    while len(taken) < len(lengths):
        taken += [len(job.entry.source_ids) for job in queue.take(0, [], busy=False)]
    assert taken == (lengths if streams else sorted(lengths, reverse=True))


def test_a_word_waits_for_one_source_of_a_large_request():
    """Whose other sources come after it, although they came earlier."""
    queue = Queue(dataclasses.replace(SCHEDULER, max_batch_tokens=22), 1)  # two sources
    queue.put(large := jobs(100))
    held = queue.take(0, [], busy=False)
    assert held == large[:2]
    queue.put(word := jobs(1))
    assert queue.take(0, held[1:], busy=True) == large[2:3]
    assert queue.take(0, large[2:3], busy=True) == word


class Server:
    """A worker that completes `rate` rows a second, by a clock that is only counted."""

    def __init__(self, rate):
        self.now, self.rate, self.running = 0.0, rate, []
        self.queue = Queue(SCHEDULER, 1, lambda: self.now)

    def serve(self, seconds):
        for _ in range(round(seconds * self.rate)):
            self.running += self.queue.take(0, self.running, busy=True)
            self.now += 1 / self.rate
            self.running = self.running[1:]


def test_a_request_that_would_wait_too_long_is_refused_whole():
    server = Server(rate=100)
    server.queue.put(jobs(2000))
    server.serve(5)
    for rows, seconds in ((1, 0.1), (400, 11), (1400, 60)):
        server.queue.put(accepted := jobs(rows), seconds)
        assert not any(job.abandoned for job in accepted)
        for job in accepted:
            job.result.cancel()
    with pytest.raises(Overloaded) as refused:
        server.queue.put(too_many := jobs(900), 10)
    assert "rows (sources, times their beams or samples) wait already" in refused.value.detail
    assert refused.value.retry_after == pytest.approx(10, abs=3)  # it would wait for 20 seconds
    assert not {*too_many} & {*server.queue.leave(0)}


def test_a_request_that_takes_too_long_itself_is_not_told_to_come_back():
    """Its rows take longer than it has even where nothing else waits."""
    server = Server(rate=100)
    server.queue.put(jobs(2000))
    server.serve(17)
    with pytest.raises(DeadlineExceeded) as refused:
        server.queue.put(jobs(400), 1.5)
    assert "400 rows" in refused.value.detail
    assert "this request has 1.5: send fewer" in refused.value.detail
    server.queue.put(jobs(400), 60)


@pytest.mark.parametrize("are_removed", [True, False])
def test_a_rate_is_forgotten_though_the_last_rows_were_abandoned(are_removed):
    """A queue that is empty for an hour does not refuse rows because it was slow before."""
    server = Server(rate=1)
    server.queue.put(slow := jobs(1000))
    server.serve(301)
    with pytest.raises(DeadlineExceeded):
        server.queue.put(jobs(100), 10)
    for job in slow:
        job.result.cancel()
    if are_removed:
        assert server.queue.take(0, [], busy=True) == []
    server.now += 3600
    server.queue.put(jobs(100), 10)


def test_who_waits_is_answered_in_time():
    """Whatever arrives, each accepted request is taken within the seconds that it has."""
    chance, server, late = random.Random(0), Server(rate=100), []
    server.queue.put(jobs(300))
    accepted = {}
    for _ in range(400):
        server.serve(0.25)
        with suppress(Overloaded, DeadlineExceeded):
            asked = jobs(chance.choice([1, 1, 1, 30, 300]))
            server.queue.put(asked, seconds := chance.choice([1, 5, 20]))
            accepted[asked[-1]] = (server.now, seconds)
        for job in [one for one in server.running if one in accepted]:
            arrived, seconds = accepted.pop(job)
            late.append((server.now - arrived) / seconds)
    assert len(late) > 100
    assert sum(each > 1.5 for each in late) <= 0.05 * len(late)


def test_many_rows_are_shared_out():
    queue = Queue(SCHEDULER, 2)
    queue.put(wanted := jobs(12))
    queue.put(left := jobs(9))
    for each in left:
        each.result.cancel()
    assert queue.take(0, [], busy=False) == wanted[:6]
    assert queue.take(1, [], busy=False) == wanted[6:]


def test_a_few_rows_gather_at_the_worker_that_decodes_most():
    queue = Queue(SCHEDULER, 2)
    queue.put(first := jobs(12))
    held = [queue.take(worker, [], busy=False) for worker in (0, 1)]
    assert held == [first[:6], first[6:]]
    assert queue.take(1, held[1][1:], busy=True) == []  # one row has ended
    queue.put(more := jobs(3))
    assert queue.take(1, held[1][1:], busy=True) == []
    assert queue.take(0, held[0], busy=True) == more


def test_a_few_rows_go_to_one_worker_together():
    queue = Queue(SCHEDULER, 2)
    queue.put(wanted := jobs(11))
    assert queue.take(1, [], busy=False) == wanted


def test_a_worker_is_alone_while_the_others_have_nothing():
    queue = Queue(SCHEDULER, 2)
    queue.put(jobs(2))
    held = queue.take(0, [], busy=False)
    assert queue.is_alone(0)
    assert not queue.is_alone(1)
    queue.occupy(1)
    assert not queue.is_alone(0)
    queue.take(1, [], busy=True)  # what occupied it is done
    assert queue.is_alone(0)
    queue.put(jobs(12))
    queue.take(0, held, busy=True)
    queue.take(1, [], busy=False)
    assert not queue.is_alone(0)


def test_a_few_rows_do_not_wait_for_a_worker_that_is_teacher_forcing():
    queue = Queue(SCHEDULER, 2)
    queue.put(jobs(2))
    assert len(queue.take(0, [], busy=False)) == 2
    queue.put(more := jobs(1))
    assert queue.take(1, [], busy=True) == []
    queue.occupy(0)
    assert queue.take(1, [], busy=True) == more


def test_a_few_rows_do_not_wait_for_a_worker_without_room():
    queue = Queue(dataclasses.replace(SCHEDULER, max_batch_tokens=24), 2)
    queue.put(jobs(2))
    held = queue.take(0, [], busy=False)
    assert len(held) == 2
    queue.put(more := jobs(1))
    assert queue.take(1, [], busy=True) == []
    assert queue.take(0, held, busy=True) == []
    assert queue.take(1, [], busy=True) == more


def test_a_worker_that_decodes_many_rows_leaves_new_ones_to_the_others():
    queue = Queue(SCHEDULER, 2)
    queue.put(jobs(4, beam_size=4))
    held = [queue.take(worker, [], busy=False) for worker in (0, 1)]
    many = [*held[0], *held[1]]
    assert queue.take(0, many, busy=True) == []
    assert queue.take(1, [], busy=True) == []
    queue.put(more := jobs(1))
    assert queue.take(0, many, busy=True) == []
    assert queue.take(1, [], busy=True) == more


def test_a_new_request_waits_for_one_that_had_its_turn_and_not_for_all():
    """Not even if a batch is full of their rows: some of it is kept for new requests."""
    queue = Queue(SCHEDULER, 1)
    for _ in range(40):
        queue.put(jobs(100))
    held = queue.take(0, [], busy=True)
    while taken := queue.take(0, held, busy=True):
        held += taken
    assert sum(job.size.positions for job in held) <= 4096 * 7 / 8
    queue.put(word := jobs(1))
    assert queue.take(0, held, busy=True) == word
    queue.put(others := jobs(2))
    assert queue.take(0, held[2:], busy=True)[1:] == others[:1]


@pytest.mark.parametrize("beams", [1, 4, 16])
@pytest.mark.parametrize(("sent", "coming"), [(100, 0), (3, 97)])
def test_large_requests_take_no_room_that_is_kept_for_small_ones(beams, sent, coming):
    """However many come, and with whatever part of their rows: theirs end together and late."""
    queue, held = Queue(SCHEDULER, 1), []
    for _ in range(60):
        request = jobs(sent, beams)
        queue.put(request, 60, Rest(coming * beams, request[0].arrived))
        while taken := queue.take(0, held, busy=True):
            held += taken
    for _ in range(3):
        queue.put(word := jobs(1))
        assert queue.take(0, held, busy=True) == word
        held += word


def simulate(workers, arriving):
    """Put the requests that are `arriving` before each step. Yield the step and the worker each
    time one takes jobs, and these. A job takes as many steps as it may have tokens."""
    queue = Queue(SCHEDULER, workers)
    running = [{} for _ in range(workers)]  # the jobs of each worker, and when they end
    for now, requests in enumerate(arriving):
        for request in requests:
            queue.put(request)
        for worker, held in enumerate(running):
            running[worker] = held = {job: end for job, end in held.items() if end > now}
            taken = queue.take(worker, [*held], busy=True)
            held |= {job: now + job.entry.search.max_new_tokens for job in taken}
            yield now, worker, taken


def overtaken(workers, words, large):
    """Let new requests of a word come before each step, and `large` before the 30th. Return how
    many of those that came after it each worker took before it."""
    arriving = [[jobs(1) for _ in range(words)] for _ in range(300)]
    later = {job for requests in arriving[30:] for job in chain(*requests)}
    arriving[30].insert(0, [large])
    counts = [0] * workers
    for _, worker, taken in simulate(workers, arriving):
        if large in taken:
            return counts
        counts[worker] += len(later.intersection(taken))
    raise AssertionError("it starves")


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("beams", [120, 300, 400], ids=["beside others", "nearly alone", "alone"])
@pytest.mark.parametrize("words", [3, 20, 60])
def test_a_job_that_needs_much_room_is_overtaken_a_limited_number_of_times(workers, beams, words):
    """However many small requests come meanwhile."""
    (large,) = jobs(1, beams)
    counts = overtaken(workers, words, large)
    assert min(counts) <= OVERTAKEN + words


def test_the_other_workers_go_on_while_one_makes_room():
    queue, held, taken = Queue(SCHEDULER, 2), [jobs(200), jobs(200)], [0, 0]
    for job in chain(*held):
        job.is_small = True
    queue.put(jobs(1, 400))
    for _ in range(100):
        for worker, running in enumerate(held):
            queue.put(jobs(1))
            taken[worker] += len(queue.take(worker, running, busy=True))
    assert min(taken) <= OVERTAKEN
    assert sum(taken) == 200


@pytest.mark.parametrize(
    ("workers", "requests", "beams"), [(1, 1, 1), (1, 5, 1), (1, 1, 8), (2, 1, 1)]
)
def test_words_do_not_wait_until_large_requests_have_room(workers, requests, beams):
    """Rows of their own keep the next ones out: to refuse words would not help these."""
    words = [[jobs(1, tokens=2) for _ in range(workers)] for _ in range(600)]
    came = {job: now for now, each in enumerate(words) for job in chain(*each)}
    arriving = [[jobs(400, beams, tokens=200) for _ in range(requests)], *words]
    waits = [
        now - 1 - came[job]
        for now, _, taken in simulate(workers, arriving)
        for job in came.keys() & {*taken}
    ]
    assert len(waits) >= len(came) - 9 * workers  # the last ones still wait
    assert max(waits) <= 9


def test_a_worker_makes_room_as_soon_as_only_small_requests_are_in_the_way():
    queue, earlier, words = Queue(SCHEDULER, 1), jobs(200), []
    queue.put(large := jobs(1, 400))
    for _ in range(100):
        queue.put(jobs(1))
        words += queue.take(0, [*earlier, *words], busy=True)
    assert len(words) == 100
    queue.put(jobs(1))
    assert queue.take_plain(0, words) == queue.take(0, words, busy=True) == []
    assert queue.take(0, [], busy=True) == large


def test_a_worker_that_has_made_room_in_vain_gathers_no_rows():
    """Few rows go to the busiest worker once the job is cancelled for which it made room."""
    queue, held = Queue(SCHEDULER, 2), [jobs(3), jobs(1)]
    held[1][0].is_small = True
    queue.put(large := jobs(1, 400))
    for _ in range(OVERTAKEN):
        queue.put(jobs(1))
        assert queue.take(1, held[1], busy=True)
    queue.put(word := jobs(1))
    assert queue.take(1, held[1], busy=True) == []
    for job in [*large, *word]:
        job.result.cancel()
    for worker in (0, 1):
        assert queue.take(worker, held[worker], busy=True) == []
    queue.put(word := jobs(1))
    assert queue.take(1, held[1], busy=True) == []
    assert queue.take(0, held[0], busy=True) == word


@pytest.mark.parametrize("plain", [True, False])
def test_a_queue_keeps_no_job_that_it_has_handed_out(plain):
    """Not the last one either, which a worker took into the room that is kept for it."""
    queue, held = Queue(SCHEDULER, 1), jobs(325)
    queue.put(word := jobs(1))
    taken = queue.take_plain(0, held) if plain else queue.take(0, held, busy=True)
    assert taken == word
    result = weakref.ref(word[0].result)
    del word, taken
    assert result() is None


@given(st.lists(st.integers(0, 4), min_size=80, max_size=80))
def test_new_requests_double_the_wait_of_others_at_most(arriving):
    """However many arrive, and whenever."""
    queue = Queue(dataclasses.replace(SCHEDULER, max_batch_tokens=1), 1)  # one job at a time
    large = [jobs(9) for _ in range(20)]
    for request in large:
        queue.put(request)
    owners = {job: i for i, request in enumerate(large) for job in request}
    line, latest = 20, {}  # requests that wait; when each may be taken at the latest
    for now, count in enumerate(arriving):
        (job,) = queue.take(0, [], busy=True)
        line += count - (job not in owners)
        if job in owners:
            assert now <= latest.get(owners[job], now)
            latest[owners[job]] = now + 2 * line
        for _ in range(count):
            queue.put(jobs(1))


@given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from([1, 4, 16])), max_size=30))
def test_only_first_jobs_use_what_is_kept_and_all_stay_within_a_batch(requests):
    queue, held = Queue(SCHEDULER, 1), []
    first = set()
    for count, beams in requests:
        queue.put(request := jobs(count, beams))
        first.add(request[0])
    while queue.rows or held:
        while taken := queue.take(0, held, busy=True):
            for job in taken:
                alone, held = not held, [*held, job]
                used = sum(each.rows * each.size.positions for each in held)
                assert used <= 4096 - (0 if job in first or alone else SCHEDULER.kept)
        held = held[1:]


@pytest.mark.parametrize(("rows", "is_late"), [(5500, False), (6500, True)])
def test_a_request_that_is_alone_is_refused_only_if_it_takes_too_long(rows, is_late):
    """Another try would be refused again, although nobody is in its way."""
    server = Server(rate=100)
    server.queue.put(request := jobs(rows), 60)  # 55 or 65 seconds
    server.serve(5)
    assert request[-1].abandoned is is_late
    if is_late:
        assert isinstance(request[-1].result.exception(), DeadlineExceeded)


def test_requests_that_come_too_late_are_refused_as_soon_as_it_is_known():
    """Not after all the work on them: they were accepted when nobody knew how long rows take."""
    server = Server(rate=100)
    requests = [jobs(200) for _ in range(40)]  # 80 seconds
    for request in requests:
        server.queue.put(request, 60)
    server.serve(5)
    refused = [i for i, request in enumerate(requests) if request[-1].abandoned]
    assert refused == [*range(40 - len(refused), 40)]  # the last ones
    assert len(refused) >= 10
    error = requests[-1][-1].result.exception()
    assert isinstance(error, Overloaded)
    assert error.retry_after >= 1
    server.serve(55)
    assert not {*server.queue.leave(0)} & {*requests[0]}


def busy_server():
    """A server that knows its rate, and has 200 to 400 rows of another request to take."""
    server = Server(rate=20)
    server.queue.put(jobs(1400))
    server.serve(50)
    return server


@pytest.mark.parametrize("rows", [17, 60, 400])
@pytest.mark.parametrize("share", [0.9, 1.15, 1.35, 1.5])
def test_a_request_that_is_accepted_is_kept(rows, share):
    """If it is expected to wait for less than four fifths of its time. Others are refused at once,
    and not later."""
    server = busy_server()
    wait = (rows + min(rows, server.queue.rows)) / 20  # in turns with the other request
    if share < 1.25:
        with pytest.raises(Overloaded):
            server.queue.put(jobs(rows), share * wait)
        return
    server.queue.put(request := jobs(rows), share * wait)
    server.serve(share * wait)
    assert not any(job.abandoned for job in request)
    assert not {*request} & {*server.queue.leave(0)}


@pytest.mark.parametrize(("coming", "fits"), [(0, True), (300, True), (800, False)])
def test_rows_that_follow_count_with_the_first(coming, fits):
    server = busy_server()
    first, waiting = jobs(100), server.queue.rows
    rest = Rest(coming, first[0].arrived)
    if fits:
        server.queue.put(first, 60, rest)
    else:
        with pytest.raises(Overloaded, match=f"so {100 + coming} more would wait"):
            server.queue.put(first, 60, rest)
    assert server.queue.rows == waiting + 100 * fits


def test_further_rows_of_a_request_are_accepted_with_it_and_take_its_turns():
    """However little time is left."""
    queue = Queue(dataclasses.replace(SCHEDULER, max_batch_tokens=22), 1)  # two sources
    first, further, other = jobs(3), jobs(3), jobs(6)
    queue.put(first, 60, Rest(3, first[0].arrived))
    queue.put(other, 60)
    queue.put(further, 0.01, Rest(0, first[0].arrived))
    taken = [queue.take(0, [], busy=True) for _ in range(6)]
    assert [*chain(*taken)] == [*in_turns([[*first, *further], other])]


@pytest.mark.parametrize(("rows", "fits"), [(1, True), (FEW, True), (20, True), (400, False)])
def test_a_new_request_makes_no_earlier_one_too_late(rows, fits):
    """It would come in time itself, but takes turns with one that has 50 seconds and needs 32.
    A few rows always fit in."""
    server = busy_server()
    server.queue.put(early := jobs(400), 50)
    if not fits:
        with pytest.raises(Overloaded, match="400 more would make some of them late"):
            server.queue.put(jobs(rows), 100)
        return
    server.queue.put(jobs(rows), 100)
    server.serve(49)
    assert not any(job.abandoned for job in early)
    assert not {*early} & {*server.queue.leave(0)}


class Client:
    """Sends the rows of a request in parts, of which two are in progress, as `Call` does."""

    def __init__(self, server, rows, seconds):
        self.server, self.left, self.until = server, rows, server.now + seconds
        self.since = server.now + random.random() / 1e6
        self.parts, self.state = [], "new"

    def go_on(self):
        if any(job.abandoned for part in self.parts for job in part):
            self.leave("withdrawn")
        elif self.server.now > self.until:
            self.leave("late")
        else:
            self.parts = [part for part in self.parts if not self.server.done.issuperset(part)]
            while self.left and len(self.parts) < 2 and self.state in ("new", "accepted"):
                self.send(min(self.left, 20))
            if not self.parts and self.state == "accepted":
                self.state = "answered"

    def send(self, rows):
        self.left -= rows
        self.parts.append(jobs(rows))
        rest = Rest(self.left, self.since)
        try:
            self.server.queue.put(self.parts[-1], self.until - self.server.now, rest)
            self.state = "accepted"
        except (Overloaded, DeadlineExceeded):
            self.leave("refused" if self.state == "new" else "withdrawn")

    def leave(self, state):
        self.state = state
        for job in [job for part in self.parts for job in part]:
            job.result.cancel()


class Counted(Server):
    """A server that knows which rows it has completed, and has few at a time."""

    def __init__(self, rate):
        super().__init__(rate)
        few = dataclasses.replace(SCHEDULER, max_batch_tokens=55)
        self.queue, self.done = Queue(few, 1, lambda: self.now), set()

    def serve(self, seconds):
        for _ in range(round(seconds * self.rate)):
            self.running += self.queue.take(0, self.running, busy=True)
            self.now += 1 / self.rate
            self.done.update(self.running[:1])
            self.running = self.running[1:]


@pytest.mark.parametrize("sizes", [[160], [1, 1, 1, 20, 160], [1] * 20 + [160]])
def test_a_large_request_that_is_accepted_is_answered(sizes):
    """Three times as much arrives as can be done in time."""
    chance, server, clients = random.Random(1), Counted(rate=40), []
    mean = sum(sizes) / len(sizes)
    for _ in range(240):
        server.serve(0.5)
        for _ in range(int(60 / mean + chance.random())):
            clients.append(Client(server, chance.choice(sizes), 60))  # noqa: PERF401
        for each in clients:
            if each.state in ("new", "accepted"):
                each.go_on()
    states = Counter(each.state for each in clients)
    assert states["late"] + states["withdrawn"] <= 0.03 * states["answered"]
    assert states["refused"] > 0
