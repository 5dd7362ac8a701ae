"""A Heed server in a process of its own."""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Generator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httpx2

from service import __main__ as server
from service.memory import return_large_blocks
from service.serving.registry import OpenEngine
from service.serving.supervisor import Supervisor
from service.settings.settings import Provider, Settings

PATIENCE = 60.0  # seconds until a server must be ready


@contextlib.contextmanager
def serving(bundle: Path, open_engine: OpenEngine = Supervisor, **changes: Any) -> Generator[int]:
    """Serve the bundle on the CPU, with changes of the settings, and yield the port. Raise
    RuntimeError if it does not start."""
    given: dict[str, Any] = {
        "bundles": [bundle],
        "provider": Provider.cpu,
        "self_check": False,
        **changes,
    }
    settings = Settings(**given, port=free_port())
    process = get_context("spawn").Process(target=serve, args=(settings, open_engine), daemon=True)
    process.start()
    try:
        until = time.monotonic() + PATIENCE
        while not is_ready(settings.port):
            if not process.is_alive() or time.monotonic() > until:
                raise RuntimeError(
                    f"the server of {bundle} died or was not ready in time: run"
                    f" HEED_BUNDLES={bundle} make serve to see why"
                )
            time.sleep(0.1)
        yield settings.port
    finally:
        process.terminate()
        process.join()


def serve(settings: Settings, open_engine: OpenEngine) -> None:
    """Serve until SIGTERM, with the memory settings of the service. Discard the log."""
    return_large_blocks()
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        asyncio.run(server.serve(settings, open_engine))


def is_ready(port: int) -> bool:
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/readyz").is_success
    except httpx2.TransportError:
        return False


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
