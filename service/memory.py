"""Give freed memory back to the system, where the C library is glibc."""

import asyncio
import ctypes

from starlette.concurrency import run_in_threadpool

M_MMAP_THRESHOLD = -3  # of malloc.h
LARGE = 1 << 19  # bytes of a block that glibc maps by itself, and unmaps when it is freed
EVERY = 10.0  # seconds


def return_large_blocks() -> None:
    """Let every large block go back to the system when it is freed.

    By default glibc raises its threshold to the largest block that was freed, up to 32 MiB. Later
    blocks of that size come from its heaps, which small blocks between them keep from shrinking.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(M_MMAP_THRESHOLD, LARGE)


async def return_small_blocks() -> None:
    """Give back the pages of glibc's heaps that hold nothing, again and again."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim:
        await asyncio.sleep(EVERY)
        await run_in_threadpool(trim, 0)
