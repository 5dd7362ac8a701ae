"""Compress large answers for clients that accept gzip.

Starlette's GZipMiddleware ignores `gzip;q=0`, compresses types that it does not know, and keeps the
event loop while it compresses an answer in small pieces.
"""

import re
import zlib
from functools import partial

from anyio import CapacityLimiter, to_thread
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.messages.content import read_accept

# TCP sends about as many bytes before it waits for the client: less would arrive no sooner.
SMALLEST = 14 << 10
LARGE = 1 << 16  # bytes of a part that a thread compresses
# Events are excluded since they must arrive at once, arrays and PNG since they hardly shrink.
COMPRESSIBLE = re.compile(r"text/(?!event-stream)|application/([\w.-]+\+)?json|image/svg\+xml")
LEVEL = 1  # 90 MB/s, to 40 % of the JSON of attention; level 6 takes five times as long, to 36 %


class Compression:
    """Compresses an answer of SMALLEST bytes or more, LARGE parts of it in threads: not those of
    `compute_limited`, whose requests wait with a deadline. An answer in several pieces loses its
    Content-Length, which HTTP/1.0 needs."""

    def __init__(self, app: ASGIApp, cores: int) -> None:
        self.app = app
        self.threads = CapacityLimiter(cores)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        start: Message | None = None
        gzip = None

        async def send_compressed(message: Message) -> None:
            nonlocal start, gzip
            if message["type"] == "http.response.start":
                if is_worth_compressing(MutableHeaders(scope=message)) and accepts_gzip(scope):
                    start, gzip = message, Gzip(self.threads)
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

        return await self.app(scope, receive, send_compressed)


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
        self._compressor = zlib.compressobj(LEVEL, wbits=16 + zlib.MAX_WBITS)

    async def add(self, part: bytes, more: bool) -> bytes:
        """Compress `part` and return the bytes ready to send. `more` is false for the last part."""
        work = partial(self._compress, part, more)
        return (
            await to_thread.run_sync(work, limiter=self._limiter) if len(part) > LARGE else work()
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
