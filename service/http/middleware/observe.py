"""ASGI middleware that observes every request: its id, a line in the log, metrics and spans."""

import asyncio
import random
import re
import time
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import structlog
from opentelemetry.trace import Tracer, format_trace_id, get_current_span
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import DeadlineExceeded, HeedError
from service.http.limits import Record
from service.http.messages.prefix import path_of
from service.http.messages.problems import paths_of
from service.http.messages.security import SECURITY_HEADERS
from service.http.middleware.metrics import RequestMetrics
from service.http.middleware.tracing import write_spans

# Exceptions that end a task or the process. Every other one is a failure: a panic of a library
# that is written in Rust does not derive from Exception.
EXITS = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
OTHER = "other"  # the route of static files and unknown paths

logger = structlog.get_logger()


class Observe:
    """Gives each request an id and a Record, and reports it when the answer ends. Texts are never
    logged. Paths that match `quiet` are logged only if they fail.

    Every answer gets the id and security headers. Pages with inline scripts have a
    Content-Security-Policy of their own.
    """

    def __init__(
        self, app: ASGIApp, metrics: RequestMetrics, tracer: Tracer | None, quiet: re.Pattern[str]
    ) -> None:
        self.app = app
        self.metrics = metrics
        self.tracer = tracer
        self.quiet = quiet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        state = scope.setdefault("state", {})
        request_id = state["request_id"] = request_id_of(scope["headers"])
        record = state["record"] = Record()
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        except EXITS:
            raise
        except BaseException as error:
            record.error = HeedError(f"unexpected {type(error).__name__}")
            raise  # to the handler that answers
        finally:
            self._report(scope, record, status or HTTPStatus.INTERNAL_SERVER_ERROR)
            record.forget_error()

    def _report(self, scope: Scope, record: Record, status: int) -> None:
        seconds, route = time.monotonic() - record.started, route_of(scope)
        self.metrics.count(record, route, status, seconds)
        if self.tracer:
            write_spans(self.tracer, record.stages)
        if not self.quiet.fullmatch(route) or status != HTTPStatus.OK:
            log(scope, record, route, status, seconds)


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the client's own X-Request-Id if it is safe to log and short, else a new one."""
    given = next((value for name, value in headers if name == b"x-request-id"), b"")
    text = given.decode("latin-1")
    return text if REQUEST_ID.fullmatch(text) else f"{random.getrandbits(128):032x}"


def report_refusal(metrics: RequestMetrics, error: HeedError, request_id: str) -> None:
    """Report bytes that were refused and are not a request."""
    metrics.count(Record(error=error), OTHER, error.status, 0.0)
    logger.info(
        "request", request_id=request_id, route=OTHER, status=int(error.status), code=error.code
    )


def route_of(scope: Scope) -> str:
    """Return the path of the endpoint, with its parameters unfilled. The router has not seen a
    request that was refused before, and HEAD only as a GET of its own."""
    path, patterns = path_of(scope), paths_of(scope).patterns
    if path in patterns:
        return path
    found = (template for template, pattern in patterns.items() if pattern.match(path))
    return next(found, OTHER)


def log(scope: Scope, record: Record, route: str, status: int, seconds: float) -> None:
    """Log a request and how many seconds it took."""
    fields: dict[str, Any] = {
        "request_id": scope["state"]["request_id"],
        "method": scope["method"],
        "route": route,
        "status": int(status),
        "duration": round(seconds, 6),
    }
    fields |= describe_work(record)
    if (context := get_current_span().get_span_context()).is_valid:
        fields["trace_id"] = format_trace_id(context.trace_id)
    write = logger.info
    if error := record.error:
        fields["code"] = error.code
        if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            fields["detail"] = error.detail
            late = isinstance(error, DeadlineExceeded)  # of which a client may cause any number
            write = logger.warning if late else logger.error
    write("request", **fields)


def describe_work(record: Record) -> dict[str, Any]:
    """Return the log's fields on what was computed. Those without a value are missing."""
    fields: dict[str, Any] = {}
    if record.model:
        fields["model"] = record.model
    if record.sources:
        fields["sources"] = record.sources
        fields["source_tokens"] = record.source_tokens
        fields["generated_tokens"] = record.generated_tokens
    if record.drafted_tokens:
        fields["drafted_tokens"] = record.drafted_tokens
        fields["accepted_tokens"] = record.accepted_tokens
    if record.problems:
        fields["problems"] = record.problems
    if record.stages:
        fields["seconds"] = {name: round(each, 6) for name, each in record.seconds.items()}
    if record.first_token is not None:
        fields["first_token"] = round(record.first_token, 6)
    return fields
