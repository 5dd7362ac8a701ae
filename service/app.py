"""The application: opens the engines, gives every request an id, turns errors into problems."""

import asyncio
import re
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import get_args

import structlog
from anyio import CapacityLimiter
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi_offline import FastAPIOffline
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers as RequestHeaders
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api import attention, decode, models
from service.api.examples import show_answers
from service.api.field_types import VARIANT
from service.bundle import load_bundle
from service.engine.client import EngineProcess
from service.engine.model import Model
from service.errors import (
    Fault,
    HeedError,
    Invalid,
    StartupError,
    TooLarge,
    Unparsable,
    UnsupportedMediaType,
)
from service.formats.json import WEB
from service.http.problems import problem, problem_of
from service.runtime.session import Mechanisms
from service.settings import MECHANISMS, Settings
from service.tokenizer import open_tokenizers

PROBLEM = "application/problem+json"
REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


log = structlog.get_logger()


def create_app(settings: Settings) -> FastAPI:
    """Opens nothing before its lifespan begins, which raises StartupError."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        app.state.models = await run_in_threadpool(open_models, settings)
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
    app.include_router(decode.router)
    app.include_router(attention.router)
    app.include_router(models.router)
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


def open_models(settings: Settings) -> dict[str, Model]:
    opened: dict[str, Model] = {}
    for path in settings.bundles:
        bundle = load_bundle(path)
        if bundle.manifest.name in opened:
            raise StartupError(f"two bundles are named {bundle.manifest.name}")
        opened[bundle.manifest.name] = Model(
            EngineProcess(bundle, settings), *open_tokenizers(bundle)
        )
    return opened


class Headers:
    """Takes X-Request-Id from the client, or makes one, and sends it back; forbids a page to load
    anything from elsewhere, which ReDoc's script would."""

    policy = "default-src 'self' 'unsafe-inline' data: blob:"

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        given = RequestHeaders(scope=scope).get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                headers["Content-Security-Policy"] = self.policy
                headers["X-Content-Type-Options"] = "nosniff"
            await send(message)

        return await self.app(scope, receive, send_with_id)


class BodyLimit:
    """Refuses bodies over the limit with a problem document, which FastAPI's own limit does not.

    A body that is a little too large is read to its end, unseen: a client that is cut off while
    it sends reads no answer. One that stops arriving is given up after `timeout` seconds.
    """

    patience = 64  # times the limit

    def __init__(self, app: ASGIApp, limit: int, timeout: float) -> None:
        self.app = app
        self.limit = limit
        self.timeout = timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size, more = 0, True

        async def next_part() -> Message:
            nonlocal size, more
            try:
                async with asyncio.timeout(self.timeout if more else None):
                    message = await receive()
            except TimeoutError as error:
                detail = f"no more of the body came for {self.timeout:g} seconds"
                raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, detail) from error
            size, more = size + len(message.get("body", b"")), message.get("more_body", False)
            return message

        async def receive_within_limit() -> Message:
            message = await next_part()
            if size <= self.limit:
                return message
            while more and size < self.patience * self.limit:
                await next_part()
            detail = f"the body may have {self.limit} bytes"
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail)

        await self.app(scope, receive_within_limit, send)


async def answer_heed_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HeedError)
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after else None
    return Response(problem_of(request, error), error.status, headers, PROBLEM)


async def answer_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return await answer_heed_error(request, refusal(request, error))


def refusal(request: Request, error: RequestValidationError) -> HeedError:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        reason, place = first["ctx"]["error"], first["loc"][-1]
        return Unparsable(f"the body is no JSON: character {place}: {reason}")
    content_type = request.headers.get("content-type", "")
    if not re.match(r"application/([\w.-]+\+)?json\s*(;|$)", content_type):
        return UnsupportedMediaType(
            f"content-type is {content_type or 'absent'}; send application/json"
        )
    body = request.scope["route"].body_field.field_info.annotation
    faults = [
        Fault(
            pointer(fault["loc"]),
            f"is no field here; there is {', '.join(fields_at(body, fault['loc'][1:-1]))}"
            if fault["type"] == "extra_forbidden"
            else reworded(fault["msg"]),
        )
        for fault in error.errors()
    ]
    return Invalid.of(faults)


def reworded(message: str) -> str:
    """pydantic's sentences, to stand after a pointer."""
    message = message.replace("Input should", "should").replace("Field required", "is required")
    message = message.replace("List should have", "should have").split(" after validation")[0]
    return message.replace("dictionary or object to extract fields from", "JSON object")


def fields_at(model: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    for name in path:
        annotation = model.model_fields[str(name)].annotation
        variants = [*get_args(annotation), annotation]
        model = next(v for v in variants if isinstance(v, type) and issubclass(v, BaseModel))
    return list(model.model_fields)


def pointer(location: Sequence[int | str]) -> str:
    """RFC 6901, from where pydantic found the fault: less "body" and the variants of unions."""
    parts = [str(part) for part in location[1:] if not str(part).startswith(VARIANT)]
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)


async def answer_http_exception(request: Request, error: Exception) -> Response:
    """What the framework refuses: unknown paths and methods, bodies too large or unreadable."""
    assert isinstance(error, HTTPException)
    status, headers = HTTPStatus(error.status_code), dict(error.headers or {})
    code = next((e.code for e in (Unparsable, TooLarge) if e.status == status), status.name.lower())
    detail = f"{error.detail}: {error.__cause__}" if error.__cause__ else error.detail
    return Response(problem(request, status, code, detail), status, headers, PROBLEM)


async def answer_unexpected(request: Request, error: Exception) -> Response:
    """Sent from outside Headers, so it carries the id itself. The traceback is logged after it."""
    log.error("unexpected", error=repr(error), request_id=request.state.request_id)
    status, headers = HTTPStatus.INTERNAL_SERVER_ERROR, {"X-Request-Id": request.state.request_id}
    detail = "an error of this service; it was logged"
    return Response(problem(request, status, "internal", detail), status, headers, PROBLEM)
