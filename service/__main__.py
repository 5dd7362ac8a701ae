"""Start the service: python -m service --help lists the settings."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial

from service.memory import SHORTAGES, exit_if_short

try:
    import structlog
    from pydantic import ValidationError

    from service.app import create_app
    from service.errors import StartupError
    from service.http.middleware.tracing import close_tracing, open_tracing
    from service.http.server.server import Server, bind
    from service.logs import configure_logs, flush_logs, open_standard_files
    from service.memory import collect_rarely, return_large_blocks, trim_heaps_regularly
    from service.serving.model import Model
    from service.serving.registry import OpenEngine
    from service.serving.supervisor import Supervisor
    from service.settings.command_line import read_settings
    from service.settings.cpu import instruction_sets, read_cpuinfo
    from service.settings.settings import Settings
except SHORTAGES as error:
    exit_if_short(error)

# Seconds after which a thread gives the interpreter's lock to another that waits for it. The event
# loop gives it up at every read and write, so where a thread reads large bodies, a turn with 40 of
# them takes 0.2 s by Python's own 5 ms.
SWITCH = 0.0005


async def serve(settings: Settings, open_engine: OpenEngine = Supervisor) -> None:
    """Serve until a signal arrives, and log. Raise StartupError if a bundle cannot be served, or
    the address cannot be listened on.

    The lifespan is entered here, and not by uvicorn, which would log the error and exit.
    """
    configure_logs(settings.log_format)
    listeners = await bind(settings)
    tracing = open_tracing()
    app = create_app(settings, open_engine, tracing)

    closing = set[asyncio.Task[None]]()

    def give_up() -> None:
        app.state.service.ending = True
        closing.add(asyncio.create_task(app.state.service.registry.close()))

    async with app.router.lifespan_context(app):
        collect_rarely()
        sys.setswitchinterval(SWITCH)
        trim_heaps_regularly()
        try:
            report = partial(report_start, settings, app.state.service.registry.served)
            await Server(app, settings, listeners, report, give_up).serve([*listeners])
        finally:  # it ends by the KeyboardInterrupt of `stop`
            if tracing:
                close_tracing(tracing)


def report_start(settings: Settings, models: Mapping[str, Model], page: str) -> None:
    """Log what is served and where, and what decides its speed."""
    opened = {name: model.engine.opened for name, model in models.items()}
    structlog.get_logger().info(
        "serving",
        page=page,
        models={
            name: {
                "precision": str(each.precision),
                "provider": each.provider,
                "workers": each.workers,
            }
            for name, each in opened.items()
        },
        threads=settings.cores,
        instructions=instruction_sets(read_cpuinfo()),
    )


def stop(*_: object) -> None:
    """Handle a signal. Uvicorn shuts down at a signal, then raises the same signal again."""
    raise KeyboardInterrupt


def main(read: Callable[[], Settings] = lambda: read_settings(sys.argv[1:])) -> None:
    """Serve with the settings that `read` returns, or exit with a line that says what is wrong."""
    open_standard_files()
    return_large_blocks()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve(read()))
    except ValidationError as error:
        sys.exit(f"heed: {StartupError.of('settings', error)}")
    except StartupError as error:
        sys.exit(f"heed: {error}")
    except SHORTAGES as error:
        exit_if_short(error)
    finally:
        flush_logs()


if __name__ == "__main__":
    main()
