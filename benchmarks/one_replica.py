"""Measure one replica, and how well a simulated one agrees with it.

Words arrive in a closed loop of each number of clients, which gives the times that the simulation
works with, and at random times at shares of what the closed loops got answered at most, which gives
the curve that the simulation has to reproduce. Turns of both alternate, so that slow moments of
the machine hit both. The client shares the cores with the service.
"""

import random
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TypedDict

from benchmarks.document import describe_machine
from benchmarks.http_client import Client
from benchmarks.load import NEW_TOKENS, arrive, closed_loop, percentiles, run
from benchmarks.replicas import Fleet, ServiceTimes, in_turn
from benchmarks.results import Latencies

CLIENTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
SHARES = (0.2, 0.4, 0.6, 0.8, 0.9)  # of the capacity
TURN = 5.0  # seconds; new connections take part of the first second
KEPT = 100  # times of single requests that are kept for each number of clients
SIMULATED = 50_000  # requests


class CurveRow(TypedDict):
    """Latencies at one load: of the service, and of a simulated replica."""

    share: float
    rate: float  # requests a second
    measured: Latencies
    simulated: Latencies


class OneReplica(TypedDict):
    machine: dict[str, str | int]
    clients: list[int]
    seconds: list[float]  # mean of a request beside so many clients
    spread: list[list[float]]  # times of single requests, relative to that mean, in order
    curve: list[CurveRow]


def measure(
    port: int, turns: int, clients: Sequence[int] = CLIENTS, shares: Sequence[float] = SHARES
) -> OneReplica:
    """Measure each closed loop and each load for TURN seconds in each of the turns."""
    closed: dict[int, list[float]] = {number: [] for number in clients}
    opened: dict[float, list[float]] = {share: [] for share in shares}
    sent: dict[float, float] = dict.fromkeys(shares, 0.0)
    run(closed_loop(port, TURN, max(clients)))  # warms up
    for turn in range(turns):
        for each in clients:
            closed[each] += run(closed_loop(port, TURN, each))
        capacity = times_of(closed).capacity
        for share in shares:
            opened[share] += run(open_loop(port, TURN, share * capacity, turn))
            sent[share] += share * capacity * TURN
    times = times_of(closed)
    return {
        "machine": describe_machine(),
        "clients": [*times.rows],
        "seconds": [*times.seconds],
        "spread": [[*each] for each in times.spread],
        "curve": [
            compare(times, sent[share] / turns / TURN, latencies)
            for share, latencies in opened.items()
        ],
    }


async def open_loop(port: int, seconds: float, rate: float, seed: int) -> list[float]:
    """Return the seconds from each arrival to its answer, without those that were refused."""
    latencies: list[float] = []
    async with Client(port, NEW_TOKENS) as client:

        async def ask(word: str, arrived: float) -> None:
            with suppress(ConnectionError):
                await client.decode(word)
                latencies.append(time.perf_counter() - arrived)

        await arrive(ask, seconds, rate, seed)
    return latencies


def times_of(closed: dict[int, list[float]]) -> ServiceTimes:
    """Return the times that closed loops of so many clients give."""
    spread = tuple(quantiles_of(each) for each in closed.values())
    return ServiceTimes((*closed,), (*map(statistics.fmean, closed.values()),), spread)


def quantiles_of(seconds: Sequence[float]) -> tuple[float, ...]:
    """Return KEPT quantiles in the middles of equal shares, divided by their mean."""
    cuts = statistics.quantiles(seconds, n=2 * KEPT)[::2]
    mean = statistics.fmean(cuts)
    return tuple(round(each / mean, 4) for each in cuts)


def compare(times: ServiceTimes, rate: float, measured: list[float]) -> CurveRow:
    return {
        "share": rate / times.capacity,
        "rate": rate,
        "measured": percentiles(measured),
        "simulated": percentiles(simulate(times, rate)),
    }


def simulate(times: ServiceTimes, rate: float) -> list[float]:
    """Return the seconds of requests of one row to one replica, `rate` a second, in as many turns
    as give SIMULATED of them. Each turn begins with an idle replica, as the measured ones do."""
    chance, found = random.Random(0), list[float]()
    while len(found) < SIMULATED:
        fleet = Fleet(times, in_turn(), chance, arriving=chance)
        fleet.start()
        fleet.arrivals(TURN, lambda _: rate, lambda _: 1)
        fleet.run()
        found += [seconds for _, seconds in fleet.seconds]
    return found
