"""Compose the application: routes, middleware, error handlers, and the engines it opens."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from anyio import CapacityLimiter
from fastapi import FastAPI, Response
from fastapi.exceptions import RequestValidationError
from fastapi_offline import FastAPIOffline
from opentelemetry.trace import TracerProvider
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse
from starlette.staticfiles import StaticFiles

from service.api import attend, attention, decode, encode, metrics, models, score, tokenize
from service.api.examples import fit_to_models, show_answers
from service.bundle import Bundle, load_bundle
from service.engine.model import Model
from service.engine.supervisor import Supervisor
from service.errors import HeedError, StartupError
from service.http import docs
from service.http.door import Door
from service.http.metrics import RequestMetrics
from service.http.middleware import BodyLimit, Headers, HeadRequests
from service.http.observe import Observe
from service.http.problems import (
    answer_heed_error,
    answer_http_exception,
    answer_unexpected,
    answer_validation_error,
)
from service.http.tracing import telemetry_of
from service.runtime.mechanisms import Mechanisms
from service.settings import MECHANISMS, WEB, Settings
from service.tokenizer import open_tokenizers

OpenEngine = Callable[[Bundle, Settings], Supervisor]
ENDPOINTS = (decode, score, encode, tokenize, attention, attend, models, metrics, docs)


def create_app(
    settings: Settings,
    open_engine: OpenEngine = Supervisor,
    tracing: TracerProvider | None = None,
) -> FastAPI:
    """Return the application. Its lifespan opens the bundles and raises StartupError.

    `open_engine` makes the engine of each bundle. Benchmarks pass another function, to put
    other engines behind the same endpoints. `tracing` gets the spans of all requests.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        served = await run_in_threadpool(open_models, settings, open_engine)
        app.state.models = served
        fit_to_models(app.openapi(), [each.engine.bundle.manifest for each in served.values()])
        app.state.mechanisms = Mechanisms(MECHANISMS, settings.provider)
        app.state.limiter = CapacityLimiter(settings.cores)
        engines = [model.engine for model in served.values()]
        try:
            for engine in engines:
                await engine.start()
            yield
        finally:
            await asyncio.gather(*(engine.close() for engine in engines))

    app = FastAPIOffline(
        title="Heed",
        summary="Serve encoder-decoder Transformers over HTTP and show what they attend to.",
        version="0.1.0",
        lifespan=lifespan,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        redoc_url=None,
        swagger_ui_parameters={"tryItOutEnabled": True, "defaultModelsExpandDepth": 0},
        telemetry=telemetry_of(tracing),
    )
    app.state.settings = settings
    app.state.metrics = RequestMetrics()
    app.state.metrics.registry.register(metrics.ModelCollector(app.state))
    for endpoint in ENDPOINTS:
        app.include_router(endpoint.router)
    app.add_api_route("/", show_page, include_in_schema=False)
    app.mount("/web", StaticFiles(directory=WEB))
    add_middleware(app, settings, tracing)
    add_error_handlers(app)
    show_answers(app.openapi())
    return app


def add_middleware(app: FastAPI, settings: Settings, tracing: TracerProvider | None) -> None:
    """Add the middleware, innermost first."""
    app.add_middleware(BodyLimit, limit=settings.max_body_bytes, timeout=settings.timeout)
    app.add_middleware(HeadRequests)
    app.add_middleware(Door, most=settings.max_requests, timeout=settings.timeout)
    tracer = tracing.get_tracer("heed") if tracing else None
    app.add_middleware(Observe, metrics=app.state.metrics, tracer=tracer)
    app.add_middleware(Headers)


def add_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(HeedError, answer_heed_error)
    app.add_exception_handler(RequestValidationError, answer_validation_error)
    app.add_exception_handler(HTTPException, answer_http_exception)
    app.add_exception_handler(Exception, answer_unexpected)


async def show_page() -> Response:
    return FileResponse(WEB / "page" / "index.html", headers={"Cache-Control": "no-cache"})


def open_models(settings: Settings, open_engine: OpenEngine) -> dict[str, Model]:
    """Return the model of each bundle by its name. Raise StartupError for equal names."""
    bundles: dict[str, Bundle] = {}
    for path in settings.bundles:
        bundle = load_bundle(path)
        name = bundle.manifest.name
        if name in bundles:
            folders = f"{bundles[name].root} and {path}"
            raise StartupError(
                f"{folders} both hold a model named {name}: serve one, or change"
                ' "name" in one bundle.json'
            )
        bundles[name] = bundle
    return {
        name: Model(open_engine(bundle, settings), *open_tokenizers(bundle))
        for name, bundle in bundles.items()
    }
