"""Let pages of other sites send requests (CORS, https://fetch.spec.whatwg.org/#http-cors-protocol)."""

from collections.abc import Sequence

from fastapi import Request
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import Forbidden, shorten
from service.http.problems import answer_heed_error

METHODS = ("GET", "HEAD", "POST")
EXPOSED = (
    "Allow",
    "Content-Disposition",
    "Retry-After",
    "Server-Timing",
    "WWW-Authenticate",
    "X-Request-Id",
)


class Cors(CORSMiddleware):
    """Starlette's CORS, whose refusals are problem documents.

    Cookies are never allowed: the service has none, and keys are sent by the page's own script.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        super().__init__(
            app,
            origins,
            METHODS,
            allow_headers=["*"],
            allow_private_network=True,
            expose_headers=EXPOSED,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (error := self.refusal(scope["method"], scope)):
            response = await answer_heed_error(Request(scope), error)
            return await response(scope, receive, send)
        return await super().__call__(scope, receive, send)

    def refusal(self, method: str, scope: Scope) -> Forbidden | None:
        """Return why a preflight is refused; None for all other requests."""
        headers = Headers(scope=scope)
        origin, asked = headers.get("origin"), headers.get("access-control-request-method")
        if method != "OPTIONS" or origin is None or asked is None:
            return None
        if not self.is_allowed_origin(origin):
            origin = shorten(origin)
            return Forbidden(f"pages of {origin} may not ask: name it in HEED_CORS_ORIGINS")
        if asked not in METHODS:
            return Forbidden(f"pages may not send {shorten(asked)}: send {' or '.join(METHODS)}")
        return None
