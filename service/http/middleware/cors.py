"""Let pages of other sites send requests (CORS, https://fetch.spec.whatwg.org/#http-cors-protocol)."""

from collections.abc import Sequence
from http import HTTPStatus

from fastapi import Request, Response
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import Forbidden, shorten
from service.http.messages.problems import answer_heed_error

METHODS = ("GET", "HEAD", "POST")
EXPOSED = (
    "Allow",
    "Content-Disposition",
    "Retry-After",
    "Server-Timing",
    "WWW-Authenticate",
    "X-Finish-Reason",
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

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code != HTTPStatus.BAD_REQUEST:
            return response
        origin = request_headers["origin"]
        if not self.is_allowed_origin(origin):
            advice = "add it to HEED_CORS_ORIGINS"
            return RefusedPreflight(f"origin {shorten(origin)} is not allowed: {advice}")
        method = shorten(request_headers["access-control-request-method"])
        return RefusedPreflight(f"method {method} is not allowed: send {' or '.join(METHODS)}")


class RefusedPreflight(Response):
    """A refused preflight, as a problem document."""

    def __init__(self, detail: str) -> None:
        super().__init__(status_code=Forbidden.status)
        self.error = Forbidden(detail)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await answer_heed_error(Request(scope), self.error)
        await response(scope, receive, send)
