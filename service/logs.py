"""Configure the logs of each process of this service, and log errors."""

import sys
from contextlib import suppress

import structlog


def configure_logs() -> None:
    """Log without local variables in tracebacks, because they hold user input, and without colours
    in files."""
    plain = structlog.dev.ConsoleRenderer(
        colors=sys.stdout is not None and sys.stdout.isatty(),
        exception_formatter=structlog.dev.plain_traceback,
    )
    processors = structlog.get_config()["processors"]
    structlog.configure(processors=[*processors[:-1], plain])


def log_error(event: str, **values: object) -> None:
    """Log an error; do nothing if the log cannot be written, because its disk is full, its pipe is
    broken, or there is no standard output: the caller's work goes on without the log."""
    with suppress(OSError, ValueError, AttributeError):
        structlog.get_logger().error(event, **values)
