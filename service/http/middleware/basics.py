"""ASGI middleware: request ids and security headers, answers to bugs, HEAD requests, Accept, and a
limit on bodies."""

import asyncio
import re
import uuid
from http import HTTPStatus

from fastapi import Request
from starlette.datastructures import Headers as RequestHeaders
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import NotAcceptable
from service.http.limits.budget import FREE, Budget, Share
from service.http.messages.content import negotiate
from service.http.messages.problems import answer_heed_error, answer_unexpected
from service.http.messages.security import SECURITY_HEADERS
from service.http.middleware.observe import EXITS
from service.logs import log_error

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Headers:
    """Gives every response security headers and an X-Request-Id: the client's own if it is safe to
    log. Pages with inline scripts have a Content-Security-Policy of their own."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        request_id = request_id_of(scope)
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        return await self.app(scope, receive, send_with_headers)


def request_id_of(scope: Scope) -> str:
    """Return the client's own X-Request-Id if it is safe to log and short, else a new one."""
    given = RequestHeaders(scope=scope).get("x-request-id", "")
    return given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


class Failures:
    """Logs a bug of ours, and answers it unless an answer has begun.

    Outside the middleware Starlette would answer it, without the headers that they add; there the
    error goes on to be logged with its traceback.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        started = False

        async def send_and_look(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            return await self.app(scope, receive, send_and_look)
        except EXITS:
            raise
        except BaseException as error:
            request = Request(scope)
            log_error("unexpected error", error=repr(error), request_id=request.state.request_id)
            if not started:
                await answer_unexpected(request)(scope, receive, send)
            raise


class Endings:
    """Calls what a request has left in its state as `at_end`, however the request ends."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.app(scope, receive, send)
        finally:
            for end in scope.get("state", {}).pop("at_end", ()):
                end()


class HeadRequests:
    """Answers HEAD like GET, without the body (RFC 9110, section 9.3.2).

    FastAPI would answer 405, since the routes declare no HEAD. If they did, each would appear twice
    in the OpenAPI document.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            return await self.app(scope, receive, send)

        async def send_without_body(message: Message) -> None:
            await send({**message, "body": b""} if "body" in message else message)

        return await self.app({**scope, "method": "GET"}, receive, send_without_body)


class Acceptance:
    """Answers 406 instead of a document or page whose media type the Accept headers exclude.

    Only GET: endpoints that compute, or that offer several types, negotiate before they start.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET":
            return await self.app(scope, receive, send)
        request, refused = Request(scope), False

        async def send_if_accepted(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start" and message["status"] == HTTPStatus.OK:
                content_type = RequestHeaders(raw=message["headers"]).get("content-type", "")
                try:
                    negotiate(request, [content_type.partition(";")[0]])
                except NotAcceptable as error:
                    refused = True
                    await (await answer_heed_error(request, error))(scope, receive, send)
            if not refused:
                await send(message)

        return await self.app(scope, receive, send_if_accepted)


class BodyLimit:
    """Refuses bodies of more than `limit` bytes with 413, and slow ones with 408.

    FastAPI's own limit would not answer with a problem document. The rest of a body that is too
    large is read and discarded, up to `discarded` times the limit: a client whose connection closes
    while it sends does not read the answer. `timeout` is in seconds for a whole body. Bodies that
    exceed `bodies` together, the bytes of all requests in progress, are refused with 429.
    """

    discarded = 64

    def __init__(self, app: ASGIApp, limit: int, timeout: float, bodies: Budget) -> None:
        self.app = app
        self.bodies = bodies
        self.limit = limit
        self.timeout = timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size, more, share = 0, True, Share()
        end = asyncio.get_running_loop().time() + self.timeout

        async def next_part() -> Message:
            nonlocal size, more
            try:
                async with asyncio.timeout_at(end if more else None):
                    message = await receive()
            except TimeoutError as error:
                detail = f"the body did not arrive within {self.timeout:g} seconds: send it faster"
                raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, detail) from error
            size, more = size + len(message.get("body", b"")), message.get("more_body", False)
            return message

        async def receive_within_limit() -> Message:
            message = await next_part()
            if size <= self.limit:
                if size > FREE and not self.bodies.add(share, size - share.nbytes):
                    detail = f"the bodies of other requests take {self.bodies.held} bytes, and the"
                    detail += f" limit is {self.bodies.limit}: try again later"
                    status = HTTPStatus.TOO_MANY_REQUESTS
                    raise HTTPException(status, detail, {"Retry-After": "1"})
                return message
            while more and size < self.discarded * self.limit:
                await next_part()
            detail = f"the body has more than {self.limit} bytes, which is the limit: send less"
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail)

        try:
            await self.app(scope, receive_within_limit, send)
        finally:
            self.bodies.release(share)
