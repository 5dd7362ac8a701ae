"""How this service logs, in each of its processes."""

import structlog


def configure_logs() -> None:
    """Tracebacks without the values of variables, which are what people sent."""
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    processors = structlog.get_config()["processors"]
    structlog.configure(processors=[*processors[:-1], plain])
