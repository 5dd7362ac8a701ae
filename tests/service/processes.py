"""Processes that serve."""

import contextlib
import re
import subprocess
import sys
from pathlib import Path

SERVING = re.compile(r'"serving","page":"http://127.0.0.1:(\d+)/')  # in the log, once it does


@contextlib.contextmanager
def running(*command):
    """A process that serves, and its port."""
    process = subprocess.Popen(
        [sys.executable, *command, "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        for line in process.stdout:
            if found := SERVING.search(line):
                yield process, int(found[1])
                break
    finally:
        process.kill()
        process.communicate()


def children_of(process):
    return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
