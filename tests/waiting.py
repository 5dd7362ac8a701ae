"""Wait for what another thread or process does."""

import time


def wait_until(condition, seconds=60):
    """Return what a condition gives, as soon as it is true. Fail after some seconds."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"it is still {found}"
        time.sleep(0.02)
    return found
