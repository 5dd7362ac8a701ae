"""ASGI middleware that answers as the client asked: HEAD without a body, the media types and the
coding that it accepts, and an error where the layers below raise one."""

import re
import zlib
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus

from anyio import CapacityLimiter, to_thread
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import HeedError, NotAcceptable
from service.http.messages.problems import answer_heed_error, answer_unexpected
from service.http.middleware.observe import EXITS
from service.logs import log_error

# TCP sends about as many bytes before it waits for the client: less would arrive no sooner.
SMALLEST = 14 << 10
LARGE_PART = 1 << 16  # bytes of a part that a thread compresses
# Events are excluded since they must arrive at once, arrays and PNG since they hardly shrink.
COMPRESSIBLE = re.compile(r"text/(?!event-stream)|application/([\w.-]+\+)?json|image/svg\+xml")
# 90 MB/s, to 40 % of the JSON of attention; level 6 takes five times as long, to 36 %.
GZIP_LEVEL = 1
# ++, *+: without going back, which takes quadratic time for a long number.
QUALITY = re.compile(r"\bq=(\d++(?:\.\d*+)?|\.\d++)\s*+(?:;|$)")
MOST_RANGES = 64  # media types of an Accept header that are read; browsers send up to ten


class Errors:
    """Answers the refusals of the middleware below, and logs and answers a bug of ours, unless an
    answer has begun.

    Outside the middleware Starlette would answer a bug, without the headers that they add; there
    the error goes on to be logged with its traceback.
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
        except HeedError as error:
            response = await answer_heed_error(Request(scope), error)
            return await response(scope, receive, send)
        except EXITS:
            raise
        except BaseException as error:
            request = Request(scope)
            log_error("unexpected error", error=repr(error), request_id=request.state.request_id)
            if not started:
                await answer_unexpected(request)(scope, receive, send)
            raise


class Negotiation:
    """Sends what the method and the Accept headers of a request ask for.

    HEAD is answered like GET, without the body (RFC 9110, section 9.3.2): FastAPI would answer 405,
    since the routes declare no HEAD. If they did, each would appear twice in the OpenAPI document.
    """

    def __init__(self, app: ASGIApp, cores: int) -> None:
        self.app = app
        self.threads = CapacityLimiter(cores)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if scope["method"] == "HEAD":
                scope, send = {**scope, "method": "GET"}, without_body(send)
            send = compressed(scope, send, self.threads)
            if scope["method"] == "GET":
                send = if_accepted(scope, receive, send)
        await self.app(scope, receive, send)


def without_body(send: Send) -> Send:
    async def send_without_body(message: Message) -> None:
        await send({**message, "body": b""} if "body" in message else message)

    return send_without_body


def if_accepted(scope: Scope, receive: Receive, send: Send) -> Send:
    """Send 406 instead of a document or page whose media type the Accept headers exclude.

    Only for GET: endpoints that compute, or that offer several types, negotiate before they start.
    """
    refused = False

    async def send_if_accepted(message: Message) -> None:
        nonlocal refused
        if message["type"] == "http.response.start" and message["status"] == HTTPStatus.OK:
            request = Request(scope)
            content_type = Headers(raw=message["headers"]).get("content-type", "")
            try:
                negotiate(request, [content_type.partition(";")[0]])
            except NotAcceptable as error:
                refused = True
                await (await answer_heed_error(request, error))(scope, receive, send)
        if not refused:
            await send(message)

    return send_if_accepted


def compressed(scope: Scope, send: Send, threads: CapacityLimiter) -> Send:
    """Compress an answer of SMALLEST bytes or more if the client accepts gzip. Parts of more than
    LARGE_PART are compressed in threads: not those of `compute_limited`, whose requests wait with a
    deadline. An answer in several pieces loses its Content-Length, which HTTP/1.0 needs.

    Starlette's GZipMiddleware ignores `gzip;q=0`, compresses types that it does not know, and keeps
    the event loop while it compresses an answer in small pieces.
    """
    start: Message | None = None
    gzip = None

    async def send_compressed(message: Message) -> None:
        nonlocal start, gzip
        if message["type"] == "http.response.start":
            if is_worth_compressing(MutableHeaders(scope=message)) and accepts_gzip(scope):
                start, gzip = message, Gzip(threads)
                return  # its headers depend on the body
        elif gzip:
            more = message.get("more_body", False)
            body = await gzip.add(message.get("body", b""), more)
            if start:
                mark_compressed(MutableHeaders(scope=start), None if more else len(body))
                await send(start)
                start = None
            message = {**message, "body": body}
        await send(message)

    return send_compressed


def is_worth_compressing(headers: MutableHeaders) -> bool:
    """Return whether an answer is sent compressed if the client accepts that. If so, tell caches
    that the answer depends on Accept-Encoding."""
    if int(headers.get("content-length", SMALLEST)) < SMALLEST:
        return False
    if not COMPRESSIBLE.match(headers.get("content-type", "")) or "content-range" in headers:
        return False
    headers.add_vary_header("Accept-Encoding")
    return True


def accepts_gzip(scope: Scope) -> bool:
    """Return whether a client accepts gzip, and likes it as well as no compression."""
    if scope["http_version"] == "1.0":
        return False
    qualities = read_accept(Headers(scope=scope).getlist("accept-encoding"))
    quality = qualities.get("gzip", qualities.get("*", 0.0))
    return quality > 0 and quality >= qualities.get("identity", 0.0)


class Gzip:
    """Compresses one body, part by part."""

    def __init__(self, limiter: CapacityLimiter) -> None:
        self._limiter = limiter
        self._compressor = zlib.compressobj(GZIP_LEVEL, wbits=16 + zlib.MAX_WBITS)

    async def add(self, part: bytes, more: bool) -> bytes:
        """Compress `part` and return the bytes ready to send. `more` is false for the last part."""
        work = partial(self._compress, part, more)
        return (
            await to_thread.run_sync(work, limiter=self._limiter)
            if len(part) > LARGE_PART
            else work()
        )

    def _compress(self, part: bytes, more: bool) -> bytes:
        return self._compressor.compress(part) + (b"" if more else self._compressor.flush())


def mark_compressed(headers: MutableHeaders, length: int | None) -> None:
    """Correct the headers of a compressed answer; `length` is None if it is not known yet."""
    headers["Content-Encoding"] = "gzip"
    del headers["Content-Length"], headers["Accept-Ranges"]
    if length is not None:
        headers["Content-Length"] = str(length)
    if etag := headers.get("etag"):
        headers["ETag"] = f"W/{etag.removeprefix('W/')}"  # other bytes, the same content


def negotiate(request: Request, offered: Sequence[str], what: str = "the answer is") -> str:
    """Return the media type of `offered` that the Accept headers prefer, the first of equals.

    The most specific range that matches a type decides its quality (RFC 9110, section 12.5.1).
    Raise NotAcceptable if the client accepts none of them. `what` is the subject and verb of the
    error's sentence, which lists `offered`.
    """
    qualities = read_accept(request.headers.getlist("accept")) or {"*/*": 1.0}

    def quality(media_type: str) -> float:
        ranges = (media_type, f"{media_type.partition('/')[0]}/*", "*/*")
        return next((qualities[each] for each in ranges if each in qualities), 0.0)

    best = max(offered, key=quality)
    if not quality(best):
        raise NotAcceptable(f"{what} available as {', '.join(offered)}; accept one of these")
    return best


def read_accept(headers: Sequence[str]) -> dict[str, float]:
    """Return the quality of each media range in Accept headers, 1.0 if it has none."""
    qualities: dict[str, float] = {}
    for part in ",".join(headers).lower().split(",", MOST_RANGES)[:MOST_RANGES]:
        media_range, _, parameters = part.partition(";")
        if media_range.strip():
            found = QUALITY.search(parameters)
            qualities[media_range.strip()] = float(found[1]) if found else 1.0
    return qualities
