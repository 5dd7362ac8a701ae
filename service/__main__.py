"""python -m service"""

import asyncio
import contextlib
import gc
import math
import signal
import sys

import uvicorn
from pydantic import ValidationError
from pydantic_settings import CliApp

from service.app import OpenEngine, create_app
from service.engine.client import EngineClient
from service.errors import StartupError
from service.logs import configure_logs
from service.settings import Settings


async def serve(settings: Settings, open_engine: OpenEngine = EngineClient) -> None:
    """The lifespan is entered here so that a StartupError reaches main() as it is."""
    app = create_app(settings, open_engine)
    config = uvicorn.Config(
        app,
        settings.host,
        settings.port,
        lifespan="off",
        timeout_graceful_shutdown=math.ceil(settings.timeout),
    )
    async with app.router.lifespan_context(app):
        gc.collect()
        gc.freeze()  # what is here now stays: looking at it again would stop all threads for long
        await uvicorn.Server(config).serve()


def stop(*_: object) -> None:
    """Uvicorn answers what it has accepted, then raises the signal again, which ends up here."""
    raise KeyboardInterrupt


def main() -> None:
    configure_logs()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        settings = CliApp.run(Settings)
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve(settings))
    except ValidationError as error:
        sys.exit(f"heed: {StartupError.of('settings', error)}")
    except StartupError as error:
        sys.exit(f"heed: {error}")


if __name__ == "__main__":
    main()
