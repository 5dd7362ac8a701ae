"""Request ids, security headers, and a limit on bodies."""

import asyncio
import re
import uuid
from http import HTTPStatus

from starlette.datastructures import Headers as RequestHeaders
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


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
