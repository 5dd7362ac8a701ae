"""Facts of a request in progress, from which its log line, metrics and spans are made."""

import time
from dataclasses import dataclass, field
from typing import NamedTuple

from service.errors import HeedError

TIMEOUT_HEADER = "X-Request-Timeout"


class Deadline(NamedTuple):
    """When a request must have been answered, in seconds of time.monotonic(), and how many seconds
    after its arrival that is."""

    at: float
    limit: float

    @property
    def left(self) -> float:
        """Seconds until then, at least 0."""
        return max(0.0, self.at - time.monotonic())


class Stage(NamedTuple):
    """A part of the work on a request; `started` is on the clock of time.monotonic()."""

    started: float
    seconds: float


@dataclass(slots=True)
class Record:
    """Facts of a request, which the steps of its endpoint fill in.

    `sources` are those that an engine got: sentences if they were split. Generated tokens and bytes
    are those of a complete answer. `problems` stand in it at the places of sources that failed.
    `error` is what was answered instead of it, in a stream too.
    """

    started: float = field(default_factory=time.monotonic)
    model: str | None = None
    sources: int = 0
    source_tokens: int = 0
    submitted: float = 0.0  # when the engine was last sent entries, by time.monotonic()
    problems: int = 0
    generated_tokens: int = 0
    attention_bytes: int = 0
    first_token: float | None = None  # seconds until the first event of a stream
    stages: dict[str, Stage] = field(default_factory=dict[str, Stage])
    error: HeedError | None = None

    def add_stage(self, name: str, started: float, seconds: float) -> None:
        """Add a stage. If several sources went through it, the slowest one counts."""
        if name not in self.stages or self.stages[name].seconds < seconds:
            self.stages[name] = Stage(started, seconds)

    def end_stage(self, name: str, started: float) -> None:
        """Add a stage that ends now."""
        self.add_stage(name, started, time.monotonic() - started)

    def forget_error(self) -> None:
        """Drop the error once it has been reported. Its frames refer to the request and to the
        futures that hold the error."""
        if self.error:
            self.error.forget_frames()
        self.error = None

    @property
    def seconds(self) -> dict[str, float]:
        return {name: stage.seconds for name, stage in self.stages.items()}
