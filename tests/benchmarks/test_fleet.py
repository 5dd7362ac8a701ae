"""The simulation agrees with queueing theory, loses no request, and is written as it should be."""

import json
import math
import random
import re
import statistics
from pathlib import Path

import pytest

from benchmarks.fleet import one_replica
from benchmarks.fleet import scenarios as fleet_scenarios
from benchmarks.fleet.events import Autoscaler, kill_one, running_rows, update
from benchmarks.fleet.replicas import (
    Fleet,
    Request,
    ServiceTimes,
    at_random,
    better_of_two,
    fewest_requests,
    fewest_rows,
    in_turn,
)
from benchmarks.fleet.report import render, verdict, write_scale
from benchmarks.fleet.scenarios import mixed_rows, one_row, simulate
from benchmarks.load.load import percentiles
from tests.benchmarks.two_stages import two_stages

DOCS = Path(__file__).parents[2] / "docs"
SERVICE = 0.01  # seconds
EXPONENTIAL = tuple(-math.log(1 - (i + 0.5) / 1000) for i in range(1000))
BATCHES = ServiceTimes((1, 8, 32), (0.01, 0.02, 0.06))


def seconds_of(load, spread=(), servers=1, together=None):
    """The times of requests to `servers` servers, of which all are busy for this share."""
    places = (1, servers) if servers > 1 else (1,)
    spreads = (spread,) * len(places) if spread else ()
    times = ServiceTimes(places, (SERVICE,) * len(places), spreads, together=together or servers)
    fleet = fleet_of(1, times, at_random, 3, most_requests=10**9)
    rate = load * servers / SERVICE
    fleet.arrivals(40_000 / rate, lambda _: rate, one_row)
    fleet.run()
    return [seconds / SERVICE for _, seconds in fleet.seconds]


def fleet_of(replicas, times=BATCHES, route=fewest_rows, seed=1, **limits):
    fleet = Fleet(times, route, random.Random(seed), **limits)
    for _ in range(replicas):
        fleet.start()
    return fleet


def test_one_server_with_exponential_times():
    """M/M/1: the mean is 1 / (1 - load); times are exponential."""
    found = seconds_of(0.7, EXPONENTIAL)
    assert statistics.fmean(found) == pytest.approx(1 / 0.3, rel=0.08)
    assert statistics.quantiles(found, n=100)[98] == pytest.approx(math.log(100) / 0.3, rel=0.12)


def test_one_server_with_constant_times():
    """M/D/1: half the wait of M/M/1."""
    assert statistics.fmean(seconds_of(0.7)) == pytest.approx(1 + 0.7 / (2 * 0.3), rel=0.05)


def test_several_servers():
    """M/M/3, by the formula of Erlang C."""
    load, servers = 0.7, 3
    offered = load * servers
    full = offered**servers / math.factorial(servers) / (1 - load)
    waits = full / (full + sum(offered**k / math.factorial(k) for k in range(servers)))
    expected = 1 + waits / (servers - offered)
    found = seconds_of(load, EXPONENTIAL, servers)
    assert statistics.fmean(found) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("spread", [(), EXPONENTIAL])
def test_a_shared_server(spread):
    """M/G/1 with processor sharing: the mean does not depend on how times vary."""
    found = seconds_of(0.7, spread, together=10**9)
    assert statistics.fmean(found) == pytest.approx(1 / 0.3, rel=0.08)


def test_a_service_of_two_stages(monkeypatch):
    """Its answers to random arrivals are enough to reproduce its latencies at other loads."""
    monkeypatch.setattr(one_replica, "SIMULATED", 20_000)
    most = 1100.0  # requests a second
    loads = [share * most for share in one_replica.LEARNED]
    times = one_replica.times_of([two_stages(5.0, rate, seed) for rate in loads for seed in (1, 2)])
    assert times.capacity == pytest.approx(most, rel=0.1)
    for rate, tolerance in ((0.25 * most, 0.1), (0.5 * most, 0.1), (0.9 * most, 0.35)):
        turns = [
            [ended - arrived for arrived, ended in two_stages(5.0, rate, seed)]
            for seed in range(10, 20)
        ]
        expected = one_replica.median_of([*map(percentiles, turns)])
        found = [*map(percentiles, one_replica.simulate_replica(times, rate))]
        assert one_replica.median_of(found) == pytest.approx(expected, rel=tolerance)


def test_times_between_measured_numbers_are_interpolated():
    assert [BATCHES.at(rows) for rows in (1, 8, 20, 32)] == pytest.approx([0.01, 0.02, 0.04, 0.06])
    assert BATCHES.at(64) == pytest.approx(2 * BATCHES.at(32))
    assert BATCHES.capacity == pytest.approx(32 / 0.06)


@pytest.mark.parametrize(
    "route", [at_random, in_turn(), fewest_requests, better_of_two, fewest_rows]
)
def test_no_request_is_lost(route):
    """Under overload, with a death and an update."""
    fleet = fleet_of(4, route=route, most_requests=40)
    fleet.at(1.0, lambda: kill_one(fleet, 0.3, 0.5))
    fleet.at(2.0, lambda: update(fleet, 0.1))
    fleet.arrivals(5.0, lambda _: 900.0, mixed_rows)
    fleet.run()
    assert fleet.refused > 0
    assert fleet.repeated > 0
    assert len(fleet.seconds) + fleet.refused + fleet.failed == fleet.sent
    assert fleet.draining == []
    assert [(each.rows, each.requests) for each in fleet.serving] == [(0, 0)] * 4


def test_an_autoscaler_asks_for_replicas_up_to_its_limit():
    fleet = fleet_of(2)
    Autoscaler(fleet, running_rows, target=8, most=5, starting=1.0, until=33.0).start()
    fleet.arrivals(33.0, lambda _: 2000.0, one_row)
    fleet.run()
    assert len(fleet.serving) == 5


def test_requests_without_a_replica_fail_after_their_tries():
    fleet = fleet_of(0)
    fleet.arrivals(1.0, lambda _: 20.0, one_row)
    fleet.run()
    assert fleet.failed == fleet.sent > 0


@pytest.mark.parametrize(("noticed", "tries"), [(0.0, 1), (0.5, 2), (2.5, 4), (3.5, None)])
def test_a_dead_replica_loses_what_it_gets_until_the_router_notices(noticed, tries):
    """The router prefers it. A client sends its request again after 1, 2 and 3 seconds."""
    fleet = fleet_of(2, route=lambda replicas, _: replicas[0])
    fleet.at(0.0, lambda: kill_one(fleet, noticed, 10.0))
    request = Request(0.001, 1)
    fleet.at(0.001, lambda: fleet.send(request))
    fleet.run()
    assert fleet.failed == (0 if tries else 1)
    assert request.tries == (tries or 4)


def test_a_request_above_the_limit_on_rows_runs_alone():
    """So requests of 16 rows with a limit of 4 are served like M/D/1."""
    times = ServiceTimes((1,), (0.01,), together=4)
    seconds = times.at(16)
    fleet = fleet_of(1, times, seed=3)
    fleet.arrivals(2000.0, lambda _: 0.7 / seconds, lambda _: 16)
    fleet.run()
    found = statistics.fmean(each for _, each in fleet.seconds) / seconds
    assert found == pytest.approx(1 + 0.7 / (2 * 0.3), rel=0.05)


def test_the_same_seed_gives_the_same_numbers(monkeypatch):
    for name, seconds in {"BEFORE": 1.0, "NOTICED": 0.2, "STARTING": 0.5, "DURATION": 4.0}.items():
        monkeypatch.setattr(fleet_scenarios, name, seconds)
    one = json.loads((DOCS / "scale.json").read_text())["one"]
    found = simulate(one, DOCS, 200)
    assert found == simulate(one, DOCS, 200)
    assert {row["failed"] for row in found["events"]} == {0}


def test_the_page_is_what_its_numbers_give(tmp_path):
    numbers = json.loads((DOCS / "scale.json").read_text())
    write_scale(numbers, tmp_path)
    for name in ("scale.md", "scale.json", "scale.svg"):
        assert (tmp_path / name).read_bytes() == (DOCS / name).read_bytes()


@pytest.mark.parametrize(("p99", "begins"), [(119.0, "All of these agree"), (79.0, "They differ")])
def test_the_page_says_whether_the_simulation_agrees(p99, begins):
    measured = {"p50_ms": 10.0, "p99_ms": 100.0}
    row = {"share": 0.5, "rate": 1.0, "measured": measured}
    assert verdict([{**row, "simulated": {**measured, "p99_ms": p99}}]).startswith(begins)


@pytest.mark.parametrize("failed", [0, 1234])
def test_the_page_says_whether_a_death_fails_requests(failed):
    numbers = json.loads((DOCS / "scale.json").read_text())
    for row in numbers["events"]:
        row["failed"] = failed if row["event"] == "a replica dies" else 5
    page = render(numbers)
    assert ("dies loses no request" in page) == (failed == 0)
    assert ("1,234 failed" in page) == (failed == 1234)


def test_the_price_scales_the_cost():
    numbers = json.loads((DOCS / "scale.json").read_text())
    costs = [
        [
            float(cost.replace(",", ""))
            for cost in re.findall(r"a second \|.*\| ([\d.,]+) \| [\d.]+ \|\n", text)
        ]
        for text in (render({**numbers, "price": price}) for price in (1.0, 2.0))
    ]
    assert costs[1] == [2 * cost for cost in costs[0]]
    assert len(costs[0]) == len(numbers["sizes"])


def test_one_replica_is_measured(server, monkeypatch):
    monkeypatch.setattr(one_replica, "TURN", 0.5)
    monkeypatch.setattr(one_replica, "SIMULATED", 500)
    monkeypatch.setattr(one_replica, "FEWEST", 1)  # a busy machine answers few
    found = one_replica.measure(
        int(server.rpartition(":")[2]), 1, learned=(0.2, 0.8), shares=(0.5,)
    )
    assert found["rows"][0] == 1
    assert len(found["rows"]) == len(found["seconds"]) == len(found["spread"])
    (row,) = found["curve"]
    assert row["rate"] > 0
    assert 0 < row["measured"]["p50_ms"] <= row["measured"]["p99_ms"]
    assert 0 < row["simulated"]["p50_ms"] <= row["simulated"]["p99_ms"]
