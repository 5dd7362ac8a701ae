"""Content negotiation, and sending an answer in pieces."""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress

from fastapi import Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from service.errors import (
    NotAcceptable,
)
from service.formats.json import PIECE, Pieces
from service.formats.writers import FILES
from service.http.waiting import settings_of


def form_of(request: Request, forms: Sequence[str], what: str = "this") -> str:
    """The form that the Accept headers like best, the first of those they like alike.

    Of the ranges that match a form the most specific counts. Raises NotAcceptable naming the forms
    (RFC 9110, section 12.5.1).
    """
    qualities: dict[str, float] = {}
    for part in ",".join(request.headers.getlist("accept")).lower().split(","):
        media_range, _, parameters = part.partition(";")
        found = re.search(r"\bq=(\d?\.?\d*)\s*(?:;|$)", parameters)
        if media_range.strip():
            quality_given = float(found[1]) if found and re.search(r"\d", found[1]) else 1.0
            qualities[media_range.strip()] = quality_given
    qualities = qualities or {"*/*": 1.0}

    def quality(form: str) -> float:
        ranges = (form, f"{form.partition('/')[0]}/*", "*/*")
        return next((qualities[each] for each in ranges if each in qualities), 0.0)

    best = max(forms, key=quality)
    if not quality(best):
        raise NotAcceptable(f"{what} comes as {', '.join(forms)}")
    return best


def send(request: Request, pieces: Pieces, seconds: dict[str, float], form: str) -> Response:
    """A large answer piece by piece, as the client takes them."""
    stages = (f"{stage};dur={1000 * value:.3f}" for stage, value in seconds.items())
    headers = {"Server-Timing": ", ".join(stages), "Vary": "Accept"}
    if form in FILES:
        headers["Content-Disposition"] = f'attachment; filename="{FILES[form]}"'
    total = sum(map(len, pieces))
    if total <= PIECE:
        return Response(b"".join(pieces), media_type=form, headers=headers)
    headers["Content-Length"] = str(total)
    response = Patient(one_by_one(pieces), media_type=form, headers=headers)
    response.patience = settings_of(request).timeout
    return response


class Patient(StreamingResponse):
    """Given up when the client takes nothing for `patience` seconds."""

    patience: float

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(self.patience):
                await send(message)

        with suppress(TimeoutError):
            await super().__call__(scope, receive, send_in_time)


async def one_by_one(pieces: Pieces) -> AsyncGenerator[bytes | memoryview]:
    for piece in pieces:
        yield piece
