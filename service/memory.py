"""Give freed memory back to the system, run the garbage collector rarely, and end a process that
may not take enough memory, or start enough threads, with one line.

It imports little, since it explains why larger modules cannot be imported.
"""

import errno
import gc
import itertools
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import NoReturn

M_MMAP_THRESHOLD = -3  # of malloc.h
LARGE_BLOCK = 1 << 19  # bytes of a block that glibc maps by itself, and unmaps when it is freed
TRIM_EVERY = 1.0  # seconds between two trims
SHORTAGES = (ImportError, MemoryError, OSError, RuntimeError)  # if `is_short` says so
ERROR_NUMBERS = (errno.ENOMEM, errno.EAGAIN)
OUT_OF_MEMORY = ("failed to map segment", "cannot allocate memory", "can't start new thread")
COLLECTED = 60  # trims from one garbage collection to the next
YOUNG = 500_000  # objects that may be made, beyond those that are freed, before the next collection


def collect_rarely() -> None:
    """Freeze all objects, and collect garbage only after YOUNG new ones.

    By default Python looks at all of them whenever a quarter as many are new: 300,000 belong to 200
    requests in progress, and the process would stand still for 0.15 s, twice a second. Call this
    when all is loaded. Requests leave nothing to the collector, except streams whose clients have
    left: anyio's cancelled tasks refer to each other.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG)


def return_large_blocks() -> None:
    """Let every large block go back to the system when it is freed.

    By default glibc raises its threshold to the largest block that was freed, up to 32 MiB. Later
    blocks of that size come from its heaps, which small blocks between them keep from shrinking.
    """
    import ctypes

    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)


def trim_heaps() -> None:
    """Give back the free pages of glibc's heaps."""
    if trim := find_trim():
        trim(0)


@cache
def find_trim() -> Callable[[int], int] | None:
    """Return glibc's malloc_trim; other C libraries have none. Each CDLL is a reference cycle."""
    import ctypes

    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def trim_heaps_regularly() -> None:
    """Start a thread that trims the heaps every TRIM_EVERY seconds. Before every COLLECTED-th time
    it collects garbage, which might hold large arrays."""
    find_trim()  # now, and not when memory is short

    def run() -> None:
        for turn in itertools.count(1):
            time.sleep(TRIM_EVERY)
            if turn % COLLECTED == 0:
                gc.collect()
            trim_heaps()

    threading.Thread(target=run, name="memory", daemon=True).start()


def exit_if_short(error: Exception) -> NoReturn:
    """Exit if the error is for want of memory or threads, else raise it."""
    if not is_short(error):
        raise error
    (reason, *_) = str(error).splitlines()[-1:] or ["no memory is left"]
    sys.exit(
        f"heed: too little memory, or too few threads: {reason}: raise ulimit -v and ulimit -u, or"
        " free some memory"
    )


def is_short(error: Exception) -> bool:
    said = str(error).lower()
    number = error.errno if isinstance(error, OSError) else None
    return (
        isinstance(error, MemoryError)
        or number in ERROR_NUMBERS
        or any(each in said for each in OUT_OF_MEMORY)
    )
