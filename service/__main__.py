"""python -m service"""

import asyncio
import contextlib
import sys

import uvicorn
from pydantic_settings import CliApp

from service.app import create_app
from service.errors import StartupError
from service.settings import Settings


async def serve(settings: Settings) -> None:
    """The lifespan is entered here so that a StartupError reaches main() as it is."""
    app = create_app(settings)
    config = uvicorn.Config(app, settings.host, settings.port, lifespan="off")
    async with app.router.lifespan_context(app):
        await uvicorn.Server(config).serve()


def main() -> None:
    settings = CliApp.run(Settings)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve(settings))
    except StartupError as error:
        sys.exit(f"heed: {error}")


if __name__ == "__main__":
    main()
