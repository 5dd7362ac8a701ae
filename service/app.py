"""The application: opens the engines, gives every request an id, turns errors into problems."""

import re
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, get_args

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi_offline import FastAPIOffline
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api import router
from service.bundle import load_bundle
from service.engine import Engine
from service.errors import (
    Fault,
    HeedError,
    Invalid,
    StartupError,
    TooLarge,
    Unparsable,
    UnsupportedMediaType,
)
from service.schemas import VARIANT
from service.served import Model
from service.settings import Settings
from service.tokenizer import open_tokenizers

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def create_app(settings: Settings) -> FastAPI:
    """Opens nothing before its lifespan begins, which raises StartupError."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        app.state.models = await run_in_threadpool(open_models, settings)
        for model in app.state.models.values():
            model.engine.start()
        yield
        for model in app.state.models.values():
            await run_in_threadpool(model.engine.close)

    app = FastAPIOffline(
        title="Heed",
        summary="Encoder-decoder Transformers over HTTP, with the attention they paid.",
        version="0.1.0",
        lifespan=lifespan,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        swagger_ui_parameters={"tryItOutEnabled": True, "defaultModelsExpandDepth": 0},
    )
    app.state.settings = settings
    app.include_router(router)
    app.add_api_route("/", to_docs, include_in_schema=False)
    app.add_middleware(BodyLimit, limit=settings.max_body_bytes)
    app.add_middleware(RequestId)
    app.add_exception_handler(HeedError, answer_heed_error)
    app.add_exception_handler(RequestValidationError, answer_validation_error)
    app.add_exception_handler(HTTPException, answer_http_exception)
    app.add_exception_handler(Exception, answer_unexpected)
    return app


async def to_docs() -> Response:
    return RedirectResponse("docs")


def open_models(settings: Settings) -> dict[str, Model]:
    models: dict[str, Model] = {}
    for path in settings.bundles:
        bundle = load_bundle(path)
        if bundle.manifest.name in models:
            raise StartupError(f"two bundles are named {bundle.manifest.name}")
        models[bundle.manifest.name] = Model(Engine(bundle, settings), *open_tokenizers(bundle))
    return models


class RequestId:
    """Takes X-Request-Id from the client, or makes one, and sends it back."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        return await self.app(scope, receive, send_with_id)


class BodyLimit:
    """Refuses bodies over the limit with a problem document, which FastAPI's own limit does not.

    A body that is a little too large is read to its end, unseen: a client that is cut off while
    it sends reads no answer.
    """

    patience = 64  # times the limit

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = 0

        async def receive_within_limit() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size <= self.limit:
                return message
            while message.get("more_body") and size < self.patience * self.limit:
                message = await receive()
                size += len(message.get("body", b""))
            raise HTTPException(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body may have {self.limit} bytes"
            )

        await self.app(scope, receive_within_limit, send)


def problem(
    request: Request,
    status: int,
    code: str,
    detail: str,
    faults: Sequence[Fault] = (),
    headers: dict[str, str] | None = None,
) -> Response:
    """RFC 9457. `title` is the status in words, since `code` names the error."""
    known = status in HTTPStatus.__members__.values()
    document: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase if known else "Client Closed Request",
        "status": status,
        "detail": detail,
        "instance": request.url.path,
        "code": code,
        "request_id": request.state.request_id,
        "errors": faults,
    }
    media_type = "application/problem+json"
    return Response(orjson.dumps(document), status, headers, media_type)


async def answer_heed_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HeedError)
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after else None
    return problem(request, error.status, error.code, error.detail, error.faults, headers)


async def answer_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return await answer_heed_error(request, refusal(request, error))


def refusal(request: Request, error: RequestValidationError) -> HeedError:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return Unparsable(f"the body is no JSON: {first['ctx']['error']} at {first['loc'][-1]}")
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
            else fault["msg"].replace("Input should", "should", 1),
        )
        for fault in error.errors()
    ]
    return Invalid("; ".join(f"{fault.pointer} {fault.detail}" for fault in faults), faults)


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
    return problem(request, status, code, error.detail, headers=headers)


async def answer_unexpected(request: Request, error: Exception) -> Response:  # noqa: ARG001
    """Sent from outside RequestId, so it carries the id itself."""
    status, headers = HTTPStatus.INTERNAL_SERVER_ERROR, {"X-Request-Id": request.state.request_id}
    detail = "an error of this service; it was logged"
    return problem(request, status, "internal", detail, headers=headers)
