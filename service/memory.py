"""Give freed memory back to the system, and run the garbage collector rarely."""

import ctypes
import gc
import itertools
import threading
import time

M_MMAP_THRESHOLD = -3  # of malloc.h
LARGE = 1 << 19  # bytes of a block that glibc maps by itself, and unmaps when it is freed
EVERY = 10.0  # seconds between two returns of small blocks
COLLECTED = 6
YOUNG = 500_000  # objects that may be made, beyond those that are freed, before the next collection


def collect_rarely() -> None:
    """Freeze all objects, and collect garbage only after YOUNG new ones.

    By default Python looks at all of them whenever a quarter as many are new: 300,000 belong to 200
    requests in progress, and the process would stand still for 0.15 s, twice a second. Call this
    when all is loaded. Requests leave nothing to the collector, but for streams that their clients
    leave: anyio's cancelled tasks refer to each other.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG)


def return_large_blocks() -> None:
    """Let every large block go back to the system when it is freed.

    By default glibc raises its threshold to the largest block that was freed, up to 32 MiB. Later
    blocks of that size come from its heaps, which small blocks between them keep from shrinking.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(M_MMAP_THRESHOLD, LARGE)


def return_small_blocks() -> None:
    """Give back the free pages of glibc's heaps."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def keep_returning() -> None:
    """Start a thread that returns small blocks every EVERY seconds. Before every COLLECTED-th time
    it collects garbage, which might hold large arrays."""

    def run() -> None:
        for turn in itertools.count(1):
            time.sleep(EVERY)
            if turn % COLLECTED == 0:
                gc.collect()
            return_small_blocks()

    threading.Thread(target=run, name="memory", daemon=True).start()
