"""Answer every error with a problem document (RFC 9457)."""

import json
from http import HTTPStatus
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from service.errors import HeedError, TooLarge, Unparsable, UnsupportedMediaType, shorten
from service.http.record import record_of
from service.http.validation_errors import refuse
from service.logs import log_error

PROBLEM = "application/problem+json"
TITLES = {413: "Content Too Large", 422: "Unprocessable Content", 499: "Client Closed Request"}
LONGEST_DETAIL = 1000  # characters; ten faults of one request are joined in `detail`


def problem(request: Request, error: HeedError) -> bytes:
    """Return the problem document of `error`, and record the error.

    `title` is the status in words (RFC 9110), since `code` names the error.
    """
    document: dict[str, Any] = {
        "type": "about:blank",
        "title": TITLES.get(error.status) or HTTPStatus(error.status).phrase,
        "status": int(error.status),
        "detail": shorten(error.detail, LONGEST_DETAIL),
        "instance": shorten(request.url.path, LONGEST_DETAIL),
        "code": error.code,
        "request_id": request.state.request_id,
        "errors": [
            {"pointer": fault.pointer, "detail": shorten(fault.detail, LONGEST_DETAIL)}
            for fault in error.faults
        ],
    }
    record_of(request).error = error
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace")  # a quoted name may hold half a surrogate pair


async def answer_heed_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HeedError)
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after else None
    return Response(problem(request, error), error.status, headers, PROBLEM)


async def answer_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return await answer_heed_error(request, refuse(request, error))


class Refusal(HeedError):
    """An error that the framework raised: unknown paths and methods, unreadable bodies."""

    def __init__(self, status: HTTPStatus, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        ours = (
            each.code
            for each in (Unparsable, TooLarge, UnsupportedMediaType)
            if each.status == status
        )
        self.code = next(ours, status.name.lower())


async def answer_http_exception(request: Request, error: Exception) -> Response:
    """Answer an error of the framework, such as an unknown path: say which paths there are."""
    assert isinstance(error, HTTPException)
    status, headers = HTTPStatus(error.status_code), dict(error.headers or {})
    detail = error.detail
    if status == HTTPStatus.BAD_REQUEST and error.__cause__:  # FastAPI could not read the body
        status, detail = explain_unreadable(request, error.__cause__)
    elif status == HTTPStatus.NOT_FOUND:
        detail = describe_endpoints(request)
    elif status == HTTPStatus.METHOD_NOT_ALLOWED:
        methods = allowed_methods(headers.get("Allow", "GET"))  # static files send no Allow
        headers["Allow"] = ", ".join(methods)
        detail = f"{request.method} is not supported here: send {' or '.join(methods)}"
    return Response(problem(request, Refusal(status, detail)), status, headers, PROBLEM)


def explain_unreadable(request: Request, cause: BaseException) -> tuple[HTTPStatus, str]:
    """Return the status and detail for a body that is compressed, not UTF-8 or nested too deep."""
    coding = request.headers.get("content-encoding", "identity")
    if coding != "identity":
        detail = f"content-encoding {shorten(coding)} is not supported: send the body uncompressed"
        return HTTPStatus.UNSUPPORTED_MEDIA_TYPE, detail
    if isinstance(cause, RecursionError):
        return HTTPStatus.BAD_REQUEST, "the body is nested too deeply: send a flat JSON object"
    if isinstance(cause, UnicodeDecodeError):
        place = f"byte {cause.object[cause.start]:#04x} at {cause.start}"
        return HTTPStatus.BAD_REQUEST, f"the body is not UTF-8: {place}; encode it as UTF-8"
    return HTTPStatus.BAD_REQUEST, f"the body cannot be read ({cause}): send a JSON object"


def describe_endpoints(request: Request) -> str:
    """Return the detail of an unknown path: it lists every endpoint of the OpenAPI document."""
    paths: dict[str, dict[str, Any]] = request.app.openapi()["paths"]
    endpoints = [f"{method.upper()} {path}" for path, item in paths.items() for method in item]
    unknown = shorten(request.url.path)
    return f"{unknown} does not exist; /docs describes the endpoints: {', '.join(endpoints)}"


def allowed_methods(allow: str) -> list[str]:
    """Return the methods of an Allow header (RFC 9110, section 10.2.1), with HEAD beside GET."""
    methods = set(allow.split(", "))
    return sorted(methods | {"HEAD"} if "GET" in methods else methods)


async def answer_unexpected(request: Request, error: Exception) -> Response:
    """Answer a bug of ours. Starlette logs the traceback afterwards.

    This response bypasses the middleware, so X-Request-Id is set here.
    """
    request_id = request.state.request_id
    log_error("unexpected error", error=repr(error), request_id=request_id)
    ours = HeedError("the service failed on this request and logged why: report its request_id")
    headers = {"X-Request-Id": request_id}
    return Response(problem(request, ours), ours.status, headers, PROBLEM)
