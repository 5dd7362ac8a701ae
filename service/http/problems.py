"""Errors as problem documents (RFC 9457)."""

import json
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, get_args

import structlog
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from service.errors import (
    Fault,
    HeedError,
    Invalid,
    TooLarge,
    Unparsable,
    UnsupportedMediaType,
)

TITLES = {413: "Content Too Large", 422: "Unprocessable Content", 499: "Client Closed Request"}


def problem(
    request: Request, status: int, code: str, detail: str, faults: Sequence[Fault] = ()
) -> bytes:
    """`title` is the status in words (RFC 9110), since `code` names the error."""
    document: dict[str, Any] = {
        "type": "about:blank",
        "title": TITLES.get(status) or HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "instance": request.url.path,
        "code": code,
        "request_id": request.state.request_id,
        "errors": [{"pointer": fault.pointer, "detail": fault.detail} for fault in faults],
    }
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace")  # a name quoted may hold half a surrogate pair


def problem_of(request: Request, error: HeedError) -> bytes:
    return problem(request, error.status, error.code, error.detail, error.faults)


PROBLEM = "application/problem+json"


log = structlog.get_logger()


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


VARIANT = "as "  # how the tags of a union's variants begin; no part of a JSON pointer
