"""Choose the media type of an answer."""

import re
from collections.abc import Sequence

from fastapi import Request

from service.errors import NotAcceptable

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
