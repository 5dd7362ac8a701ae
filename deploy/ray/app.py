"""Heed on Ray Serve: each replica is the whole service, with engines of its own (docs/ray.md)."""

from fastapi import FastAPI, Request
from pydantic import ValidationError
from ray import serve
from ray.serve import Application

from service.api.models import ready
from service.app import create_app
from service.errors import StartupError
from service.http.tracing import close_tracing, open_tracing
from service.logs import configure_logs, flush_logs
from service.memory import return_large_blocks
from service.settings import Settings


@serve.deployment(max_ongoing_requests=4096)
@serve.ingress()
class Heed:
    """A replica: Ray's proxy sends it requests, and its own admission control refuses them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Return the application, whose lifespan Ray enters and leaves."""
        return_large_blocks()
        configure_logs(self.settings.log_format)
        self.tracing = open_tracing()
        return create_app(self.settings, tracing=self.tracing)

    async def check_health(self) -> None:
        """Raise Unavailable while /readyz answers 503: Ray replaces a replica that stays so."""
        await ready(Request({"type": "http", "app": self.app}))

    def __del__(self) -> None:
        if self.tracing:
            close_tracing(self.tracing)
        flush_logs()


def app(arguments: dict[str, str]) -> Application:
    """Return the application by the variables HEED_... of the process that deploys it."""
    try:
        settings = Settings(**arguments)
    except ValidationError as error:
        raise StartupError.of("settings", error) from error
    threads = settings.threads or 1
    settings = settings.model_copy(update={"threads": threads})
    return Heed.options(
        ray_actor_options={"num_cpus": threads},
        graceful_shutdown_timeout_s=settings.timeout + settings.shutdown_timeout,
    ).bind(settings)
