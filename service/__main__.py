"""Start the service: python -m service --help lists the settings."""

import asyncio
import contextlib
import gc
import signal
import sys

from pydantic import ValidationError
from pydantic_settings import CliApp

from service.app import create_app
from service.engine.registry import OpenEngine
from service.engine.supervisor import Supervisor
from service.errors import StartupError
from service.http.server import Server, bind
from service.logs import configure_logs
from service.memory import return_large_blocks, return_small_blocks
from service.settings import Settings


async def serve(settings: Settings, open_engine: OpenEngine = Supervisor) -> None:
    """Serve until a signal arrives. Raise StartupError if a bundle cannot be served, or the address
    cannot be listened on.

    The lifespan is entered here, and not by uvicorn, which would log the error and exit.
    """
    listeners = await bind(settings)
    app = create_app(settings, open_engine)

    def give_up() -> None:
        closing = [model.engine.close() for model in app.state.models.values()]
        app.state.closing = asyncio.gather(*closing)

    async with app.router.lifespan_context(app):
        gc.collect()
        gc.freeze()  # else later collections would pause all threads to scan these objects
        trimming = asyncio.create_task(return_small_blocks())
        await Server(app, settings, listeners, give_up).serve([*listeners])
        trimming.cancel()


def stop(*_: object) -> None:
    """Handle a signal. Uvicorn shuts down at a signal, then raises the same signal again."""
    raise KeyboardInterrupt


def main() -> None:
    configure_logs()
    return_large_blocks()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve(CliApp.run(Settings)))
    except ValidationError as error:
        sys.exit(f"heed: {StartupError.of('settings', error)}")
    except StartupError as error:
        sys.exit(f"heed: {error}")


if __name__ == "__main__":
    main()
