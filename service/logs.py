"""How this service logs, in each of its processes."""

from contextlib import suppress

import structlog


def configure_logs() -> None:
    """Tracebacks without the values of variables, which are what people sent."""
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    processors = structlog.get_config()["processors"]
    structlog.configure(processors=[*processors[:-1], plain])


def log_error(event: str, **values: object) -> None:
    """Log an error; do nothing if the log cannot be written, because its disk is full, its pipe is
    broken, or there is no standard output. For callers whose work must go on all the same."""
    with suppress(OSError, ValueError, AttributeError):
        structlog.get_logger().error(event, **values)
