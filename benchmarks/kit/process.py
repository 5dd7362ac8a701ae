"""Processes that answer calls: one for each system that is compared."""

import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).parents[2]
TURN = 0.05  # seconds
Ids = list[list[int]]


class Timed(NamedTuple):
    """Seconds of a call, CPU seconds of all cores together, and the ids that were generated."""

    seconds: float
    cpu_seconds: float
    ids: Ids


@dataclass(frozen=True, slots=True)
class Call:
    """A batch of sources. With `attention`, all decoder and cross-attention is returned, too.

    `options` are those of SearchOptions, which only Heed is given.
    """

    sources: Ids
    beam_size: int
    new_tokens: int
    attention: bool = False
    options: dict[str, float] = field(default_factory=dict[str, float])


Decode = Callable[[Call], Timed]


class Stopwatch:
    """Measures the seconds of its block, and the CPU seconds of all cores together."""

    def __enter__(self) -> "Stopwatch":
        self._before = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._before[0]
        self.cpu_seconds = time.process_time() - self._before[1]

    def timed(self, ids: Ids) -> Timed:
        return Timed(self.seconds, self.cpu_seconds, ids)


@dataclass(frozen=True, slots=True)
class System:
    """`open` runs in the system's process, which is started by the interpreter `python`. It gets
    the folder of the models (`write_models`)."""

    name: str
    open: Callable[[Path], Decode]
    python: str = sys.executable


class Running:
    """A system in a child process, which sleeps between its calls."""

    def __init__(self, system: System, folder: Path) -> None:
        """Return when the system is open."""
        self.name = system.name
        self._pipe, theirs = Pipe()
        number = theirs.fileno()
        command = [system.python, "-m", __name__, str(number)]
        self._process = subprocess.Popen(command, cwd=REPOSITORY, pass_fds=[number])
        theirs.close()  # or recv() would wait for a dead child: our copy keeps the pipe open
        self._pipe.send((system, folder.absolute()))
        self._pipe.recv()

    def __call__(self, call: Call) -> Timed:
        self._pipe.send(call)
        return self._pipe.recv()

    def turn(self, call: Call) -> Timed:
        """Answer a call again and again, for at least TURN seconds, and return the means. A first
        answer, which warms the CPU's caches after the turns of others, does not count."""
        self(call)
        answers = [self(call)]
        while sum(answer.seconds for answer in answers) < TURN:
            answers.append(self(call))
        seconds, cpu_seconds, ids = zip(*answers, strict=True)
        return Timed(statistics.mean(seconds), statistics.mean(cpu_seconds), ids[-1])

    def close(self) -> float:
        """End the process and return its peak memory in MiB."""
        self._pipe.send(None)
        peak: float = self._pipe.recv()
        self._process.wait()
        return peak


def answer_calls(pipe: "Connection[Any, Any]") -> None:
    """Open the system that arrives and answer each call until None, then send the peak memory in
    MiB."""
    system, folder = pipe.recv()
    run = system.open(folder)
    pipe.send(os.getpid())
    while (call := pipe.recv()) is not None:
        pipe.send(run(call))
    status = Path("/proc/self/status").read_text()
    pipe.send(int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024)


if __name__ == "__main__":
    answer_calls(Connection(int(sys.argv[1])))
