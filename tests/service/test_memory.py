"""Freed memory goes back to the system."""

import subprocess
import sys

import pytest

RETURNING = """
import gc, time, weakref
from pathlib import Path
from service import memory

memory.TRIM_EVERY, memory.COLLECTED = 0.05, 2
memory.collect_rarely()
memory.trim_heaps_regularly()

class Garbage:
    def __init__(self):
        self.itself = self
        self.blocks = [bytearray(50_000) for _ in range(2_000)]

def pages():
    return int(Path("/proc/self/statm").read_text().split()[1])

garbage = Garbage()
gone = weakref.ref(garbage)
above = bytearray(50_000)  # keeps the heap from shrinking by itself
full = pages()
del garbage
until = time.monotonic() + 30
while gone() or pages() > full / 2:
    assert time.monotonic() < until, (gone(), pages(), full)
    time.sleep(0.01)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_garbage_and_small_blocks_are_returned_in_time():
    subprocess.run([sys.executable, "-c", RETURNING], check=True, timeout=60)
