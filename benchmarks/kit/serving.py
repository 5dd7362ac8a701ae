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
    with reserved_port() as port:
        started = Settings(**given, port=port), open_engine
        process = get_context("spawn").Process(target=serve, args=started, daemon=True)
        process.start()
        try:
            until = time.monotonic() + PATIENCE
            while not is_ready(f"http://127.0.0.1:{port}"):
                if not process.is_alive() or time.monotonic() > until:
                    raise RuntimeError(
                        f"the server of {bundle} died or was not ready in time: run"
                        f" HEED_BUNDLES={bundle} make serve to see why"
                    )
                time.sleep(0.1)
            yield port
        finally:
            process.terminate()
            process.join()


def serve(settings: Settings, open_engine: OpenEngine) -> None:
    """Serve until SIGTERM, with the memory settings of the service. Discard the log."""
    return_large_blocks()
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        asyncio.run(server.serve(settings, open_engine))


def is_ready(address: str) -> bool:
    try:
        return httpx2.get(f"{address}/readyz").is_success
    except httpx2.TransportError:
        return False


@contextlib.contextmanager
def reserved_port() -> Generator[int]:
    """A port for a server that sets SO_REUSEADDR. The system gives it to no other process."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
