"""Open a bundle in an engine's process: whatever is wrong with it becomes one StartupError."""

import os
import resource
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from service.bundle.files import MIB
from service.bundle.manifest import Bundle
from service.engine.engine import Engine
from service.errors import StartupError
from service.runtime.providers import PROVIDERS, installed_provider, reason_of
from service.settings.settings import Provider, Settings
from service.text.opening import open_tokenizers

# What opening may allocate. Weights on disk as fp16 take 4 bytes a number when they are opened, and
# as many again when they are packed for products, in two graphs.
LEAST_MEMORY = 384 * MIB
MEMORY_PER_BYTE = 8  # for each byte of the bundle's files
MEMORY_PER_CORE = 32 * MIB  # the stacks of threads
MEMORY = Path("/proc/self/statm")  # Linux only; the sixth number: pages of data
# Seconds of CPU time that opening may take: over 20 times what intact bundles take on a server.
LEAST_SECONDS = 7.0
SECONDS_PER_BYTE = 1e-7
SECONDS_PER_CORE = 0.25  # threads that share a product spin while they wait for each other


def open_engine(bundle: Bundle, settings: Settings) -> Engine:
    """Return the engine of a bundle whose tokenizers can be opened too. Raise StartupError.

    The HTTP process opens the tokenizers only after that: some files make the library take
    gigabytes, or end the process.
    """
    try:
        with limited(bundle, settings):
            with silenced():
                open_tokenizers(bundle)
            return Engine(bundle, settings)
    except StartupError:
        raise
    except MemoryError as error:
        raise StartupError(
            f"{bundle.root} needs much more memory than its files have bytes, or than is free:"
            " export the bundle again, or free some memory"
        ) from error
    except Exception as error:  # of whatever library: the parent must hear of it
        raise StartupError(
            f"{bundle.root} cannot be opened: {type(error).__name__}: {reason_of(error)}"
        ) from error


@contextmanager
def limited(bundle: Bundle, settings: Settings) -> Generator[None]:
    """Limit CPU time, and on Linux memory, to what an intact bundle of this size needs.

    Beyond the limits, SIGXCPU ends the process and allocations fail. With a GPU there are none: its
    drivers reserve addresses without taking memory, and TensorRT compiles for minutes.
    """
    if installed_provider(settings.provider) != PROVIDERS[Provider.cpu]:
        yield
        return
    size = sum(file.size for file in bundle.manifest.files.values())
    seconds = LEAST_SECONDS + SECONDS_PER_BYTE * size + SECONDS_PER_CORE * settings.cores
    # The limit counts ticks, which in a process that has run for long differ from its clock.
    used = 1.1 * time.process_time()
    most = {
        resource.RLIMIT_CPU: round(used + seconds),
        resource.RLIMIT_CORE: 0,  # else SIGXCPU would write all memory to a file
    }
    if MEMORY.exists():
        held = int(MEMORY.read_text().split()[5]) * resource.getpagesize()
        needed = LEAST_MEMORY + MEMORY_PER_BYTE * size + MEMORY_PER_CORE * settings.cores
        most[resource.RLIMIT_DATA] = held + needed
    before = {kind: resource.getrlimit(kind) for kind in most}
    try:
        for kind, limit in most.items():
            limits = [limit, *(each for each in before[kind] if each != resource.RLIM_INFINITY)]
            resource.setrlimit(kind, (min(limits), before[kind][1]))
        yield
    finally:
        for kind, limits in before.items():
            resource.setrlimit(kind, limits)


@contextmanager
def silenced() -> Generator[None]:
    """Discard what the library of the tokenizers prints when it fails: it also raises an error."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
