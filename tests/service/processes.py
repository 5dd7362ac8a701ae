"""Processes of Python: to their end, or while they serve."""

import contextlib
import re
import subprocess
import sys
from pathlib import Path

SERVING = re.compile(r'"serving","page":"http://127.0.0.1:(\d+)/')  # in the log, once it does


def run_python(*arguments, **options):
    """Run Python to its end, and return its status and what it wrote."""
    given = {"capture_output": True, "text": True, "timeout": 300, "check": False, **options}
    return subprocess.run([sys.executable, *arguments], **given)


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
