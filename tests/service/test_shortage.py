"""Where memory or threads are short, the start ends in one line and not in a traceback."""

import errno

import pytest

from service.memory import exit_if_short
from tests.service.processes import run_python

LIMITED = """
import os, resource, sys
limit = int(sys.argv[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
os.execv(sys.executable, [sys.executable, "-m", "service", "--port", "0"])
"""


@pytest.mark.parametrize("kib", [60_000, 130_000])
def test_too_little_memory_to_start_is_a_line(kib):
    """OpenBLAS speaks for itself. With more, the place depends on the machine."""
    done = run_python("-c", LIMITED, str(kib))
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(("heed: too little memory, or too few threads: ", "OpenBLAS error"))


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("no room for an array"),
        RuntimeError("can't start new thread"),
        ImportError("libx.so: failed to map segment from shared object"),
        ImportError("advice\n\nOriginal error was: a.so: cannot allocate memory"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
    ],
)
def test_a_shortage_is_explained(error):
    with pytest.raises(
        SystemExit, match=r"^heed: too little memory, or .*: raise ulimit -v"
    ) as end:
        exit_if_short(error)
    assert len(str(end.value).splitlines()) == 1


@pytest.mark.parametrize(
    "error", [ImportError("No module named 'x'"), RuntimeError("a bug"), OSError(errno.EPERM, "no")]
)
def test_any_other_error_keeps_its_traceback(error):
    with pytest.raises(type(error)) as raised:
        exit_if_short(error)
    assert raised.value is error
