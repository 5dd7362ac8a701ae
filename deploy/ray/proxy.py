"""Middleware of Ray's HTTP proxy: its own errors, too, are problem documents.

RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=deploy.ray.proxy:middleware installs it.
"""

from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import DeadlineExceeded, HeedError, Unavailable
from service.http.messages.problems import PROBLEM, HttpError, write_problem
from service.http.messages.security import SECURITY_HEADERS
from service.http.middleware.observe import request_id_of
from service.pace import refuse

REQUEST_ID = b"x-request-id"


class ProxyErrors:
    """Answers with a problem document where the proxy has an error of its own: a text, or nothing
    if a replica died before it answered. An answer that has begun just ends."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, replaced = False, False

        async def send_or_replace(message: Message) -> None:
            nonlocal started, replaced
            if message["type"] == "http.response.start":
                started = True
                replaced = is_of_proxy(message)
                if replaced:
                    await answer(scope, send, error_of(message["status"]))
                drop_repeated_id(message)
            if not replaced:
                await send(message)

        await self.app(scope, receive, send_or_replace)
        if not started:
            error = Unavailable("the replica that computed the answer was lost: send it again")
            error.retry_after = 1
            await answer(scope, send, error)


def middleware() -> list[Middleware]:
    """Return what Ray puts around its proxy."""
    return [Middleware(ProxyErrors)]


def is_of_proxy(message: Message) -> bool:
    """Return whether the answer is an error that no replica gave: theirs have security headers."""
    headers = Headers(raw=[*message["headers"]])
    own = all(name in headers for name in SECURITY_HEADERS)
    return message["status"] >= HTTPStatus.BAD_REQUEST and not own


def error_of(status: int) -> HeedError:
    """Return the error for a status that the proxy gives by itself."""
    match status:
        case HTTPStatus.NOT_FOUND:
            return HttpError(
                HTTPStatus.NOT_FOUND, "nothing is served here: check the path's prefix"
            )
        case HTTPStatus.REQUEST_TIMEOUT:
            return DeadlineExceeded(
                "the request took longer than the proxy waits (request_timeout_s): send less, or"
                " try again later"
            )
        case HTTPStatus.TOO_MANY_REQUESTS:
            return refuse("the service has more requests than it can answer in time", 1)
        case HTTPStatus.SERVICE_UNAVAILABLE:
            return Unavailable("no replica accepts requests now; try again later")
        case _:
            return HeedError("the proxy failed on this request and logged why")


def drop_repeated_id(message: Message) -> None:
    """Keep the request id of the replica: the proxy adds the same again."""
    ids = [header for header in message["headers"] if header[0].lower() == REQUEST_ID]
    others = [header for header in message["headers"] if header[0].lower() != REQUEST_ID]
    message["headers"] = [*others, *ids[:1]]


async def answer(scope: Scope, send: Send, error: HeedError) -> None:
    request_id = request_id_of(scope["headers"])
    content = write_problem(error, scope["path"], request_id)
    headers = {
        "Content-Type": PROBLEM,
        "Content-Length": str(len(content)),
        "X-Request-Id": request_id,
        **({"Retry-After": str(error.retry_after)} if error.retry_after else {}),
        **SECURITY_HEADERS,
    }
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": int(error.status), "headers": raw})
    await send({"type": "http.response.body", "body": content})
