"""End a process that may not take enough memory, or start enough threads, with one line.

It imports little, since it explains why larger modules cannot be imported.
"""

import errno
import sys
from typing import NoReturn

SHORTAGES = (ImportError, MemoryError, OSError, RuntimeError)  # if `is_short` says so
ERROR_NUMBERS = (errno.ENOMEM, errno.EAGAIN)
SIGNS = ("failed to map segment", "cannot allocate memory", "can't start new thread")


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
        or any(each in said for each in SIGNS)
    )
