"""Start the service: python -m service --help lists the settings."""

import asyncio
import contextlib
import errno
import gc
import math
import signal
import sys

import uvicorn
from pydantic import ValidationError
from pydantic_settings import CliApp

from service.app import create_app
from service.engine.registry import OpenEngine
from service.engine.supervisor import Supervisor
from service.errors import StartupError
from service.http.protocol import Protocol
from service.http.tracing import close_tracing, open_tracing
from service.logs import configure_logs, flush_logs, open_standard_files
from service.settings import Settings

# Seconds that open connections may take after SIGTERM, before the engines close. This and the
# engines' CLOSE_TIMEOUT stay below the 30 seconds after which Kubernetes kills a container.
SHUTDOWN_TIMEOUT = 15.0


async def serve(settings: Settings, open_engine: OpenEngine = Supervisor) -> None:
    """Serve until a signal arrives, and log. Raise StartupError if a bundle cannot be served, or
    the address cannot be listened on.

    The lifespan is entered here, and not by uvicorn, which would log the error and exit.
    """
    configure_logs(settings.log_format)
    await check_address(settings.host, settings.port)
    tracing = open_tracing()
    app = create_app(settings, open_engine, tracing)
    config = uvicorn.Config(
        app,
        settings.host,
        settings.port,
        http=Protocol,
        lifespan="off",
        log_config=None,  # it logs through configure_logs
        access_log=False,  # Observe logs requests
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),  # by default uvicorn believes this machine
        forwarded_allow_ips=[str(network) for network in settings.trusted_proxies],
        timeout_graceful_shutdown=math.ceil(min(settings.timeout, SHUTDOWN_TIMEOUT)),
    )
    async with app.router.lifespan_context(app):
        gc.collect()
        gc.freeze()  # else later collections would pause all threads to scan these objects
        await uvicorn.Server(config).serve()
        if tracing:
            await close_tracing(tracing)


async def check_address(host: str, port: int) -> None:
    """Raise StartupError if the address cannot be bound.

    Uvicorn would report it only after the models are open, as an error number.
    """
    try:
        server = await asyncio.get_running_loop().create_server(
            asyncio.Protocol, host, port, start_serving=False
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            detail = "is taken: choose another one with HEED_PORT"
        else:
            detail = f"cannot be used ({error.strerror or error}): change HEED_HOST or HEED_PORT"
        raise StartupError(f"port {port} of {host} {detail}") from error
    server.close()


def stop(*_: object) -> None:
    """Handle a signal. Uvicorn shuts down at a signal, then raises the same signal again."""
    raise KeyboardInterrupt


def main() -> None:
    open_standard_files()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve(CliApp.run(Settings)))
    except ValidationError as error:
        sys.exit(f"heed: {StartupError.of('settings', error)}")
    except StartupError as error:
        sys.exit(f"heed: {error}")
    finally:
        flush_logs()


if __name__ == "__main__":
    main()
