"""The simulated cases: loads and routes, what happens to a fleet, and replicas for a load."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TypedDict

from benchmarks.fleet.events import Autoscaler, kill_one, running_rows, update, waiting_rows
from benchmarks.fleet.one_replica import OneReplica, times_in
from benchmarks.fleet.replicas import (
    Fleet,
    Route,
    ServiceTimes,
    at_random,
    better_of_two,
    fewest_requests,
    fewest_rows,
    in_turn,
)
from benchmarks.load.load import percentiles

ROUTES: dict[str, Callable[[], Route]] = {
    "at random": lambda: at_random,
    "in turn": in_turn,
    "fewest requests": lambda: fewest_requests,
    "better of two": lambda: better_of_two,
    "fewest rows": lambda: fewest_rows,
}
LOADS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
REPLICAS = 20  # of the fleet whose routes are compared
SHARES, LARGE = (0.8, 0.2), 16  # of requests with one sentence, and with LARGE
MEAN_ROWS = SHARES[0] + SHARES[1] * LARGE
EVENTFUL = 10  # replicas of the fleet to which something happens
BEFORE, DURATION = 60.0, 480.0  # seconds until it happens, and of the whole
RISE = 300.0  # seconds in which the load doubles
NOTICED = 10.0  # seconds until a dead replica gets no more requests, by its readiness probe
STARTING = 30.0  # seconds until a new replica serves
TARGET = 8  # rows of a replica, for the autoscaler
MOST_REPLICAS = 20  # that it asks for, as deploy/kubernetes does
DEATH = "a replica dies"  # an event
PLANNED = 0.6  # share of the capacity that a fleet is planned for
RATES = (1_000, 10_000, 100_000)  # words or sentences a second
WINDOW = 10.0  # seconds


class EventRow(TypedDict):
    """The outcome of a fleet; `worst_ms` and `last_ms` are the p99 of ten seconds."""

    event: str
    p99_ms: float
    worst_ms: float
    last_ms: float
    sent: int
    refused: int
    repeated: int
    failed: int
    replicas: int  # at the end


class SizeRow(TypedDict):
    unit: str
    rate: int  # words or sentences a second
    replicas: int
    p99_ms: float  # of a fleet with this load


class Scale(TypedDict):
    """The numbers of the page."""

    one: OneReplica
    capacity: dict[str, float]  # of one replica, words or sentences a second
    routes: dict[str, list[list[float]]]  # [load, p99 in milliseconds]
    events: list[EventRow]
    sizes: list[SizeRow]


def one_row(_: Random) -> int:
    return 1


def mixed_rows(chance: Random) -> int:
    return 1 if chance.random() < SHARES[0] else LARGE


def sentence_times(docs: Path) -> ServiceTimes:
    """Return the times of the base model at int8, from docs/performance.json."""
    cells = json.loads((docs / "performance.json").read_text())["cells"]
    found = {
        cell["batch"]: cell["int8"]["ms"] / 1000
        for cell in cells
        if (cell["model"], cell["beam_size"]) == ("base", 1)
    }
    return ServiceTimes(tuple(found), tuple(found.values()))


def new_fleet(times: ServiceTimes, replicas: int, route: Route = fewest_rows) -> Fleet:
    fleet = Fleet(times, route, Random(0))
    for _ in range(replicas):
        fleet.start()
    return fleet


def curve(
    times: ServiceTimes, route: Callable[[], Route], rows: Callable[[Random], int], requests: int
) -> list[list[float]]:
    """Return [load, p99 in milliseconds] for each load of a fleet."""
    mean = 1.0 if rows is one_row else MEAN_ROWS
    found: list[list[float]] = []
    for load in LOADS:
        rate = load * REPLICAS * times.capacity / mean
        fleet = new_fleet(times, REPLICAS, route())
        fleet.arrivals(requests / rate, lambda _, rate=rate: rate, rows)
        fleet.run()
        found.append([load, percentiles([each for _, each in fleet.seconds])["p99_ms"]])
    return found


def events(times: ServiceTimes) -> list[EventRow]:
    """Return what happens to a fleet of EVENTFUL replicas when something happens to it."""
    rate = PLANNED * EVENTFUL * times.capacity / MEAN_ROWS

    def steady(_: float) -> float:
        return rate

    def doubled(now: float) -> float:
        return rate if now < BEFORE else 2 * rate

    def rising(now: float) -> float:
        return rate * (1 + min(max(0.0, (now - BEFORE) / RISE), 1.0))

    def nothing(_: Fleet) -> None:
        pass

    def scale(metric: Callable[..., float]) -> Callable[[Fleet], None]:
        return lambda fleet: Autoscaler(
            fleet, metric, TARGET, MOST_REPLICAS, STARTING, DURATION
        ).start()

    cases = [
        ("nothing", steady, nothing),
        (DEATH, steady, at_once(lambda fleet: kill_one(fleet, NOTICED, STARTING))),
        ("a rolling update", steady, at_once(lambda fleet: update(fleet, STARTING))),
        ("the load doubles at once", doubled, nothing),
        ("at once, autoscaler on rows in progress", doubled, scale(running_rows)),
        ("it doubles in five minutes", rising, nothing),
        ("in five minutes, autoscaler on waiting rows", rising, scale(waiting_rows)),
        ("in five minutes, autoscaler on rows in progress", rising, scale(running_rows)),
    ]
    return [event(times, name, load, begin) for name, load, begin in cases]


def at_once(action: Callable[[Fleet], None]) -> Callable[[Fleet], None]:
    """Return what lets the action happen after BEFORE seconds."""
    return lambda fleet: fleet.at(BEFORE, lambda: action(fleet))


def event(
    times: ServiceTimes,
    name: str,
    load: Callable[[float], float],
    begin: Callable[[Fleet], None],
) -> EventRow:
    fleet = new_fleet(times, EVENTFUL)
    begin(fleet)
    fleet.arrivals(DURATION, load, mixed_rows)
    fleet.run()
    windows: dict[int, list[float]] = {}
    for arrived, seconds in fleet.seconds:
        windows.setdefault(int(arrived / WINDOW), []).append(seconds)
    worst = {place: percentiles(each)["p99_ms"] for place, each in windows.items() if each[1:]}
    return {
        "event": name,
        "p99_ms": percentiles([each for _, each in fleet.seconds])["p99_ms"],
        "worst_ms": max(worst.values()),
        "last_ms": worst[max(worst)],
        "sent": fleet.sent,
        "refused": fleet.refused,
        "repeated": fleet.repeated,
        "failed": fleet.failed,
        "replicas": len(fleet.serving),
    }


def sizes(times: dict[str, ServiceTimes], p99: dict[str, float]) -> list[SizeRow]:
    """Return how many replicas each rate takes at the PLANNED load, with one to spare."""
    return [
        {
            "unit": unit,
            "rate": rate,
            "replicas": math.ceil(rate / (PLANNED * each.capacity)) + 1,
            "p99_ms": p99[unit],
        }
        for unit, each in times.items()
        for rate in RATES
    ]


def simulate(one: OneReplica, docs: Path, requests: int) -> Scale:
    words = times_in(one)
    sentences = sentence_times(docs)
    planned = LOADS.index(PLANNED)
    p99 = {
        unit: curve(times, ROUTES["fewest rows"], one_row, requests)[planned][1]
        for unit, times in {"words": words, "sentences": sentences}.items()
    }
    return {
        "one": one,
        "capacity": {"words": words.capacity, "sentences": sentences.capacity},
        "routes": {
            name: curve(sentences, route, mixed_rows, requests) for name, route in ROUTES.items()
        },
        "events": events(sentences),
        "sizes": sizes({"words": words, "sentences": sentences}, p99),
    }
