"""The application: opens the engines, gives every request an id, turns errors into problems."""

from collections.abc import AsyncGenerator, Callable
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
from service.api.examples import show_answers
from service.bundle import Bundle, load_bundle
from service.engine.client import EngineClient
from service.engine.model import Model
from service.errors import (
    HeedError,
    StartupError,
)
from service.formats.html import WEB
from service.http.middleware import BodyLimit, Headers
from service.http.problems import (
    answer_heed_error,
    answer_http_exception,
    answer_unexpected,
    answer_validation_error,
)
from service.runtime.mechanisms import Mechanisms
from service.settings import MECHANISMS, Settings
from service.tokenizer import open_tokenizers


OpenEngine = Callable[[Bundle, Settings], EngineClient]


def create_app(settings: Settings, open_engine: OpenEngine = EngineClient) -> FastAPI:
    """Opens nothing before its lifespan begins, which raises StartupError."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        app.state.models = await run_in_threadpool(open_models, settings, open_engine)
        app.state.mechanisms = Mechanisms(MECHANISMS, settings.provider)
        app.state.limiter = CapacityLimiter(settings.cores)
        for model in app.state.models.values():
            await model.engine.start()
        try:
            yield
        finally:
            for model in app.state.models.values():
                await model.engine.close()

    app = FastAPIOffline(
        title="Heed",
        summary="Encoder-decoder Transformers over HTTP, with the attention they paid.",
        version="0.1.0",
        lifespan=lifespan,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        swagger_ui_parameters={"tryItOutEnabled": True, "defaultModelsExpandDepth": 0},
    )
    app.state.settings = settings
    for endpoint in (decode, score, encode, tokenize, attention, attend, models):
        app.include_router(endpoint.router)
    app.add_api_route("/", show_page, include_in_schema=False)
    app.mount("/web", StaticFiles(directory=WEB))
    app.add_middleware(BodyLimit, limit=settings.max_body_bytes, timeout=settings.timeout)
    app.add_middleware(Headers)
    app.add_exception_handler(HeedError, answer_heed_error)
    app.add_exception_handler(RequestValidationError, answer_validation_error)
    app.add_exception_handler(HTTPException, answer_http_exception)
    app.add_exception_handler(Exception, answer_unexpected)
    show_answers(app.openapi())
    return app


async def show_page() -> Response:
    return FileResponse(WEB / "index.html", headers={"Cache-Control": "no-cache"})


def open_models(settings: Settings, open_engine: OpenEngine = EngineClient) -> dict[str, Model]:
    opened: dict[str, Model] = {}
    for path in settings.bundles:
        bundle = load_bundle(path)
        if bundle.manifest.name in opened:
            raise StartupError(f"two bundles are named {bundle.manifest.name}")
        opened[bundle.manifest.name] = Model(
            open_engine(bundle, settings), *open_tokenizers(bundle)
        )
    return opened
