"""Compose the application: routes, middleware, error handlers, and the engines it opens."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

from anyio import CapacityLimiter
from fastapi import FastAPI, Response
from fastapi.exceptions import RequestValidationError
from fastapi_offline import FastAPIOffline
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse
from starlette.staticfiles import StaticFiles

from service.api import attend, attention, decode, encode, models, score, tokenize
from service.api.examples import fit_to_models, show_answers
from service.bundle import Bundle, load_bundle
from service.engine.model import Model
from service.engine.supervisor import Supervisor
from service.errors import HeedError, StartupError
from service.http import docs
from service.http.door import Door
from service.http.middleware import BodyLimit, Headers, HeadRequests
from service.http.problems import (
    answer_heed_error,
    answer_http_exception,
    answer_unexpected,
    answer_validation_error,
)
from service.runtime.mechanisms import Mechanisms
from service.settings import MECHANISMS, WEB, Settings
from service.tokenizer import open_tokenizers

OpenEngine = Callable[[Bundle, Settings], Supervisor]
ENDPOINTS = (decode, score, encode, tokenize, attention, attend, models, docs)


def create_app(settings: Settings, open_engine: OpenEngine = Supervisor) -> FastAPI:
    """Return the application. Its lifespan opens the bundles and raises StartupError.

    `open_engine` makes the engine of each bundle. Benchmarks pass another function, to put
    other engines behind the same endpoints.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        bundles = await run_in_threadpool(load_bundles, settings)
        fit_to_models(app.openapi(), [bundle.manifest for bundle in bundles.values()])
        app.state.mechanisms = Mechanisms(MECHANISMS, settings.provider)
        app.state.limiter = CapacityLimiter(settings.cores)
        engines = [open_engine(bundle, settings) for bundle in bundles.values()]
        try:
            for engine in engines:
                await engine.start()
            # An engine opens the tokenizers first: a bad one may end the process that opens it.
            app.state.models = await run_in_threadpool(open_models, engines)
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
    )
    app.state.settings = settings
    for endpoint in ENDPOINTS:
        app.include_router(endpoint.router)
    app.add_api_route("/", show_page, include_in_schema=False)
    app.mount("/web", StaticFiles(directory=WEB))
    add_middleware(app, settings)
    add_error_handlers(app)
    show_answers(app.openapi())
    return app


def add_middleware(app: FastAPI, settings: Settings) -> None:
    """Add the middleware, innermost first."""
    app.add_middleware(BodyLimit, limit=settings.max_body_bytes, timeout=settings.timeout)
    app.add_middleware(HeadRequests)
    app.add_middleware(Door, most=settings.max_requests, timeout=settings.timeout)
    app.add_middleware(Headers)


def add_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(HeedError, answer_heed_error)
    app.add_exception_handler(RequestValidationError, answer_validation_error)
    app.add_exception_handler(HTTPException, answer_http_exception)
    app.add_exception_handler(Exception, answer_unexpected)


async def show_page() -> Response:
    return FileResponse(WEB / "page" / "index.html", headers={"Cache-Control": "no-cache"})


def load_bundles(settings: Settings) -> dict[str, Bundle]:
    """Return the bundles by the names of their models. Raise StartupError for equal names."""
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
    return bundles


def open_models(engines: Sequence[Supervisor]) -> dict[str, Model]:
    """Return the model of each engine by its name."""
    models = [Model(engine, *open_tokenizers(engine.bundle)) for engine in engines]
    return {model.name: model for model in models}
