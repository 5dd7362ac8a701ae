"""Heed on Ray Serve: each replica is the whole service, with engines of its own (docs/ray.md)."""

from typing import Any

from fastapi import FastAPI
from pydantic import ValidationError
from ray import serve
from ray.serve import Application
from starlette.middleware import Middleware

from deploy.ray.multiplex import Multiplexing
from service.api.endpoints.models import check_ready
from service.app import create_app
from service.errors import StartupError
from service.http.middleware.tracing import close_tracing, open_tracing
from service.logs import configure_logs, flush_logs
from service.memory import collect_rarely, return_large_blocks, trim_heaps_regularly
from service.settings.settings import Settings

MOST_MODELS = 3  # of HEED_MODELS in a replica at once, if the argument models_per_replica is absent


# More requests than a replica accepts: it refuses the others itself, by the service's own words.
@serve.deployment(max_ongoing_requests=4096)
@serve.ingress()
class Heed:
    """A replica of the service."""

    def __init__(self, settings: Settings, most_models: int) -> None:
        self.settings = settings
        self.most_models = most_models

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Return the application, whose lifespan Ray enters and leaves."""
        return_large_blocks()
        trim_heaps_regularly()
        configure_logs(self.settings.log_format)
        self.tracing = open_tracing()
        heed = create_app(self.settings, tracing=self.tracing)
        innermost = Middleware(Multiplexing, heed=heed, most=self.most_models)
        heed.user_middleware.append(innermost)
        collect_rarely()  # Ray opens the models later: they are not frozen
        return heed

    async def check_health(self) -> None:
        """Raise Unavailable while /readyz answers 503: Ray replaces a replica that stays so."""
        await check_ready(self.app.state.service)

    def __del__(self) -> None:
        if tracing := getattr(self, "tracing", None):
            close_tracing(tracing)
        flush_logs()


def app(arguments: dict[str, Any]) -> Application:
    """Return the application with these settings, by default those of the variables HEED_... of the
    process that deploys it. Raise StartupError."""
    most_models = int(arguments.pop("models_per_replica", MOST_MODELS))
    try:
        settings = Settings(**arguments)
    except ValidationError as error:
        raise StartupError.of("settings", error) from error
    if settings.admin_key:
        raise StartupError(
            "HEED_ADMIN_KEY would change the models of one replica: unset it, and deploy other"
            " HEED_BUNDLES or use HEED_MODELS with multiplexing"
        )
    threads = settings.threads or 1
    return Heed.options(
        ray_actor_options={"num_cpus": threads},
        graceful_shutdown_timeout_s=settings.timeout + settings.shutdown_timeout,
    ).bind(settings.model_copy(update={"threads": threads}), most_models)
