"""Let something happen to a simulated fleet: a death, a rolling update, or a rise of the load."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from benchmarks.fleet.replicas import Fleet, Replica

DRAINED = 1.0  # seconds between two looks at a replica that drains
SCRAPE = 5.0  # seconds between two samples of a metric, as Prometheus takes them
WINDOW = 12  # samples of which the autoscaler sees the mean
DECIDE = 15.0  # seconds between two decisions, as of a HorizontalPodAutoscaler
DOUBLED = 2  # times as many replicas as serve, after one decision

Metric = Callable[[Replica], float]


def waiting_rows(replica: Replica) -> float:
    return replica.waiting


def running_rows(replica: Replica) -> float:
    return replica.rows - replica.waiting


def kill_one(fleet: Fleet, noticed: float, starting: float) -> None:
    """Let a replica die. The router notices after `noticed` seconds, and its successor serves after
    `starting` seconds."""
    fleet.kill(fleet.serving[0], noticed)
    fleet.at(fleet.now + starting, fleet.start)


def update(fleet: Fleet, starting: float) -> None:
    """Replace each replica: its successor serves before it takes no more requests, and it has
    finished its own before the next one is replaced (maxSurge 1, maxUnavailable 0)."""
    replace(fleet, [*fleet.serving], starting)


def replace(fleet: Fleet, old: list[Replica], starting: float) -> None:
    if not old:
        return

    def swap() -> None:
        fleet.start()
        fleet.drain(old[0])
        wait()

    def wait() -> None:
        if old[0].requests:
            fleet.at(fleet.now + DRAINED, wait)
        else:
            replace(fleet, old[1:], starting)

    fleet.at(fleet.now + starting, swap)


@dataclass(slots=True)
class Autoscaler:
    """Asks for as many replicas as bring the mean of a metric to its target, until a moment. It
    only adds replicas, which serve after `starting` seconds."""

    fleet: Fleet
    metric: Metric
    target: float
    most: int  # replicas
    starting: float
    until: float
    wanted: int = 0
    _samples: deque[float] = field(default_factory=lambda: deque[float](maxlen=WINDOW))

    def start(self) -> None:
        self.wanted = len(self.fleet.serving)
        self._sample()
        self._decide()

    def _sample(self) -> None:
        self._samples.append(sum(self.metric(each) for each in self.fleet.serving))
        self._again(SCRAPE, self._sample)

    def _decide(self) -> None:
        mean = sum(self._samples) / len(self._samples)
        wanted = min(math.ceil(mean / self.target), DOUBLED * len(self.fleet.serving), self.most)
        for _ in range(wanted - self.wanted):
            self.fleet.at(self.fleet.now + self.starting, self.fleet.start)
        self.wanted = max(self.wanted, wanted)
        self._again(DECIDE, self._decide)

    def _again(self, seconds: float, action: Callable[[], None]) -> None:
        if self.fleet.now + seconds < self.until:
            self.fleet.at(self.fleet.now + seconds, partial(action))
