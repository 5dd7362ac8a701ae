"""Choose the media type of an answer, and send large answers in pieces."""

import re
from collections.abc import AsyncGenerator, Sequence

from fastapi import Request, Response
from starlette.responses import StreamingResponse

from service.errors import NotAcceptable
from service.formats.html import export_policy
from service.formats.json import Pieces
from service.formats.writers import FILE_NAMES
from service.http.limits.budget import correct
from service.http.limits.record import record_of
from service.http.messages.security import CSP

AT_ONCE = 1 << 16  # bytes of an answer that need not wait for its client to read
# ++, *+: without going back, which takes quadratic time for a long number.
QUALITY = re.compile(r"\bq=(\d++(?:\.\d*+)?|\.\d++)\s*+(?:;|$)")
MOST_RANGES = 64  # media types of an Accept header that are read; browsers send up to ten


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


def send(request: Request, pieces: Pieces, media_type: str) -> Response:
    """Return the response of `pieces`: at once if small, else as fast as the client reads.

    The Server-Timing header reports the time that each stage took.
    """
    seconds = record_of(request).seconds
    stages = (f"{stage};dur={1000 * value:.3f}" for stage, value in seconds.items())
    headers = {"Server-Timing": ", ".join(stages), "Vary": "Accept"}
    if media_type in FILE_NAMES:
        headers["Content-Disposition"] = f'attachment; filename="{FILE_NAMES[media_type]}"'
    if media_type == "text/html":
        headers[CSP] = f"{export_policy()}; frame-ancestors 'none'"
    total = sum(map(len, pieces))
    correct(request, total)
    if total <= AT_ONCE:
        return Response(b"".join(pieces), media_type=media_type, headers=headers)
    headers["Content-Length"] = str(total)
    return StreamingResponse(one_by_one(pieces), media_type=media_type, headers=headers)


async def one_by_one(pieces: Pieces) -> AsyncGenerator[bytes | memoryview]:
    """Yield the pieces on the event loop: Starlette would read a plain iterator in a thread."""
    for piece in pieces:
        yield piece
