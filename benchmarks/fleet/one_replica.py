"""Measure one replica, and how well a simulated one agrees with it.

Words arrive at random times (Poisson), each on a connection of its own. At the loads of LEARNED the
benchmark counts how many are answered in the time in which n are in progress: this is the pace that
the simulation works with. At the loads of SHARES it measures the latencies that the simulation has
to reproduce. Turns of both alternate, so that slow moments of the machine hit both. The client
shares the cores with the service.
"""

import random
import statistics
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TypedDict

from benchmarks.fleet.replicas import Fleet, ServiceTimes, in_turn
from benchmarks.kit.document import describe_machine
from benchmarks.kit.http_client import PATIENCE
from benchmarks.kit.raw_client import RawClient, status_of, write_request
from benchmarks.kit.results import Latencies
from benchmarks.load.load import WORDS, percentiles, without_pauses
from benchmarks.load.mixed_requests import write_body

CLIENTS = 32  # of the closed loop that finds the capacity
LEVELS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # requests in progress told apart
LEARNED = (0.1, 0.3, 0.5, 0.7, 0.85, 1.0)  # of the capacity
SHARES = (0.2, 0.4, 0.6, 0.8, 0.9)  # of the capacity
TURN = 5.0  # seconds
FEWEST = 20  # answers at a level from which its pace is learned
KEPT = 100  # times of single requests that are kept of each level
SIMULATED = 50_000  # requests
TOGETHER = 16  # rows that progress at once; others wait in the HTTP process or for a batch

Answered = list[tuple[float, float]]  # when each request arrived, and when it was answered


class CurveRow(TypedDict):
    """Latencies at one load: of the service, and of a simulated replica."""

    share: float
    rate: float  # requests a second
    measured: Latencies
    simulated: Latencies


class OneReplica(TypedDict):
    machine: dict[str, str | int]
    rows: list[int]  # in progress
    seconds: list[float]  # mean of a request among that many
    spread: list[list[float]]  # times of single requests, relative to `seconds`, in order
    curve: list[CurveRow]


def measure(
    port: int, turns: int, learned: Sequence[float] = LEARNED, shares: Sequence[float] = SHARES
) -> OneReplica:
    """Let words arrive at each load for TURN seconds in each of the turns."""
    capacity = measure_rate(port, TURN, CLIENTS)
    pace: list[Answered] = []
    curve: dict[float, list[Latencies]] = {share: [] for share in shares}
    for turn in range(turns):
        pace += [measure_arrivals(port, TURN, share * capacity, 2 * turn) for share in learned]
        for share in shares:
            answered = measure_arrivals(port, TURN, share * capacity, 2 * turn + 1)
            curve[share].append(percentiles([ended - arrived for arrived, ended in answered]))
    times = times_of(pace)
    return {
        "machine": describe_machine(),
        "rows": [*times.rows],
        "seconds": [*times.seconds],
        "spread": [[*each] for each in times.spread],
        "curve": [
            compare_simulated(times, share * capacity, median_of(found))
            for share, found in curve.items()
        ],
    }


def times_in(one: OneReplica) -> ServiceTimes:
    spread = tuple(tuple(each) for each in one["spread"])
    return ServiceTimes(tuple(one["rows"]), tuple(one["seconds"]), spread, TOGETHER)


def simulate_again(one: OneReplica) -> OneReplica:
    """Return the measured replica and one that is simulated anew."""
    times = times_in(one)
    curve = [compare_simulated(times, row["rate"], row["measured"]) for row in one["curve"]]
    return {**one, "curve": curve}


def measure_rate(port: int, seconds: float, clients: int) -> float:
    """Return the answers a second to clients that ask again as soon as they are answered."""
    client, words, ended = RawClient(port), Words(0), list[float]()
    with without_pauses():
        began = time.perf_counter()
        while time.perf_counter() < began + seconds:
            for _ in range(clients - len(client)):
                client.send(words.draw(), lambda each, _: ended.append(each))
            client.wait(began + seconds)
    rate = len(ended) / (time.perf_counter() - began)
    client.drain(PATIENCE)
    return rate


def measure_arrivals(port: int, seconds: float, rate: float, seed: int) -> Answered:
    """Return the requests that arrived and were not refused."""
    client, words, arrival, answered = RawClient(port), Words(seed), 0.0, Answered()
    with without_pauses():
        began = time.perf_counter()
        while (arrival := arrival + words.chance.expovariate(rate)) < seconds:
            client.wait_until(began + arrival)

            def ended(_: float, answer: bytes, arrived: float = arrival) -> None:
                if status_of(answer) == 200:
                    answered.append((arrived, time.perf_counter() - began))

            client.send(words.draw(), ended)
        client.drain(PATIENCE)
    return answered


class Words:
    """Draws requests of one word."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self._requests = [write_request("/v1/decode", write_body(word, {})) for word in WORDS]

    def draw(self) -> bytes:
        return self.chance.choice(self._requests)


def times_of(turns: Sequence[Answered]) -> ServiceTimes:
    """Return the pace at which requests were answered.

    While n are in progress each gets on at 1 / seconds(n), so that n / seconds(n) are answered a
    second. A request then took the integral of its pace over its time, relative to all.
    """
    lasted, ended = defaultdict[int, float](float), Counter[int]()
    for turn in turns:
        for seconds, running, _, ending in sweep(turn):
            if running:
                lasted[level_of(running)] += seconds
                ended[level_of(running)] += ending
    levels = tuple(level for level in LEVELS if ended[level] >= FEWEST)
    means = tuple(each * lasted[each] / ended[each] for each in levels)
    times = ServiceTimes(levels, means, together=TOGETHER)
    taken: defaultdict[int, list[float]] = defaultdict(list)
    for turn in turns:
        progress, began = 0.0, dict[int, tuple[int, float]]()
        for seconds, running, number, ending in sweep(turn):
            progress += seconds / times.at(running)
            if ending:
                level, since = began.pop(number)
                taken[level].append(progress - since)
            else:
                began[number] = level_of(running + 1), progress
    return replace(times, spread=tuple(quantiles_of(taken[level]) for level in levels))


def sweep(turn: Answered) -> Generator[tuple[float, int, int, bool]]:
    """Yield, for each arrival and each answer in order of time: the seconds since the one before,
    the requests in progress in these seconds, the number of its request, and if it is an answer."""
    events = sorted(
        (moment, ending, number)
        for number, moments in enumerate(turn)
        for ending, moment in enumerate(moments)
    )
    before, running = 0.0, 0
    for moment, ending, number in events:
        yield moment - before, running, number, bool(ending)
        running += -1 if ending else 1
        before = moment


def level_of(running: int) -> int:
    """Return the first level that is not below this number of requests, else the last."""
    return LEVELS[min(bisect_left(LEVELS, running), len(LEVELS) - 1)]


def quantiles_of(times: Sequence[float]) -> tuple[float, ...]:
    """Return KEPT quantiles in the middles of equal shares: all the same if there are not two times
    to tell them apart."""
    if len(times) < 2:
        return tuple(round(each, 4) for each in [*times, 1.0][:1] * KEPT)
    return tuple(
        round(each, 4) for each in statistics.quantiles(times, n=2 * KEPT, method="inclusive")[::2]
    )


def compare_simulated(times: ServiceTimes, rate: float, measured: Latencies) -> CurveRow:
    turns = simulate_replica(times, rate)
    return {
        "share": rate / times.capacity,
        "rate": rate,
        "measured": measured,
        # a turn of a slow replica may have fewer requests than percentiles need
        "simulated": median_of([percentiles(each) for each in turns if len(each) > 1]),
    }


def median_of(turns: Sequence[Latencies]) -> Latencies:
    return {
        "p50_ms": statistics.median(each["p50_ms"] for each in turns),
        "p99_ms": statistics.median(each["p99_ms"] for each in turns),
    }


def simulate_replica(times: ServiceTimes, rate: float) -> list[list[float]]:
    """Return the seconds of requests of one row to one replica, `rate` a second, in as many turns
    as give SIMULATED of them. Each turn begins with an idle replica, as the measured ones do."""
    chance, turns = random.Random(0), list[list[float]]()
    while sum(map(len, turns)) < SIMULATED:
        fleet = Fleet(times, in_turn(), chance, arriving=chance)
        fleet.start()
        fleet.arrivals(TURN, lambda _: rate, lambda _: 1)
        fleet.run()
        turns.append([seconds for _, seconds in fleet.seconds])
    return turns
