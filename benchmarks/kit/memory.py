"""Memory and CPU time of a process and of the processes that it started, as Linux counts them."""

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

KIB = 1024
FIELDS = {"VmRSS": "held", "RssAnon": "anonymous", "VmHWM": "peak"}
PAUSE = 0.02  # seconds between two looks at a running command
TICKS = os.sysconf("SC_CLK_TCK")  # a second


class Memory(NamedTuple):
    """Bytes in memory: now, now without pages of files, and at the peak.

    The system can drop pages of files and read them again: they only save time.
    """

    held: int
    anonymous: int
    peak: int


class Ran(NamedTuple):
    """Costs of a command: seconds, seconds summed over cores, bytes at the peak, and bytes at the
    peak without pages of files."""

    seconds: float
    core_seconds: float
    peak: int
    anonymous: int


def memory_of(pid: int) -> Memory:
    """Return the sums over the process and its descendants."""
    found = [read_status(each) for each in family(pid)]
    return Memory(*(sum(fields) for fields in zip(*found, strict=True)))


def read_status(pid: int) -> Memory:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    pairs = (line.partition(":") for line in lines)
    sizes = {name: int(size.split()[0]) * KIB for name, _, size in pairs if name in FIELDS}
    return Memory(**{field: sizes.get(name, 0) for name, field in FIELDS.items()})


def cpu_seconds_of(pid: int) -> float:
    """Return the CPU time that a process has used, in all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def family(pid: int) -> list[int]:
    """Return the process and its descendants."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            _, parent, *_ = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(parent)
    found = [pid]
    for each in found:  # grows as it goes
        found += [child for child, parent in parents.items() if parent == each]
    return found


def run_command(command: Sequence[str | Path]) -> Ran:
    """Run a command that starts no process. Raise RuntimeError with its errors if it fails."""
    began, anonymous = time.monotonic(), 0
    with (
        tempfile.TemporaryFile("w+") as errors,  # a pipe that nobody reads could fill up
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, text=True) as process,
    ):
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            with contextlib.suppress(OSError):  # it has just ended
                anonymous = max(anonymous, read_status(process.pid).anonymous)
            time.sleep(PAUSE)
        _, status, usage = ended
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        said = errors.read()
    if process.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} exits with {process.returncode}: {said}")
    seconds, core_seconds = time.monotonic() - began, usage.ru_utime + usage.ru_stime
    return Ran(seconds, core_seconds, usage.ru_maxrss * KIB, anonymous)
