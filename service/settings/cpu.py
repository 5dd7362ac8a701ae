"""The CPU: its cores, and the instruction sets that decide how fast and exactly int8 works."""

import os
import re
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")  # Linux only
# Each with its Linux CPU flags, of which one is enough.
INSTRUCTIONS = {
    "AVX2": {"avx2"},
    "AVX-512": {"avx512f"},
    "VNNI": {"avx512_vnni", "avx_vnni"},
    "AMX": {"amx_int8"},
}


@cache
def read_cpuinfo() -> str:
    """Return Linux's description of the CPUs, or an empty text."""
    return CPUINFO.read_text() if CPUINFO.exists() else ""


def instruction_sets(cpuinfo: str) -> list[str]:
    """Return those of INSTRUCTIONS that the first CPU has. Empty if it is not an x86 CPU."""
    flags = set(find_field(cpuinfo, "flags").split())
    return [name for name, any_of in INSTRUCTIONS.items() if flags & any_of]


def find_field(cpuinfo: str, name: str) -> str:
    """Return the field of the first CPU, or an empty text."""
    found = re.search(rf"^{name}[ \t]*:[ \t]*(.*)$", cpuinfo, re.MULTILINE)
    return found[1] if found else ""


def usable_cores() -> int:
    """Return how many cores this process may use: its affinity and its container limit them."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return min(len(os.sched_getaffinity(0)), container_cores())
    return min(os.cpu_count() or 1, container_cores())


def container_cores() -> int:
    """Return the cores that cgroup v2 grants, at least 1; without a limit, all of the machine's."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, round(int(quota) / int(period)))
    except (OSError, ValueError):  # no such file, or "max"
        return os.cpu_count() or 1
