"""ASGI middleware that gives each request its deadline and refuses those that cannot meet it."""

from http import HTTPStatus

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import HeedError, Unparsable, shorten
from service.http.limits.admission import Admission, Place
from service.http.limits.record import TIMEOUT_HEADER, Deadline
from service.http.messages.prefix import path_of
from service.http.messages.problems import answer_heed_error

ADMINISTRATION = "/v1/models/"  # POST requests below it change the models


class Door:
    """Refuses a POST request with 429 if it would wait too long.

    A request is in progress from the end of its body to the beginning of its answer: what is left
    to do then, to read it or to stream on, keeps no other waiting. It may have got its place from
    the Gate. GET requests, such as probes, are never refused, nor are those that change
    the models: an operator may want to do that just then.

    Every request gets its deadline: `timeout` seconds after its arrival, or earlier if its header
    X-Request-Timeout says so.
    """

    def __init__(self, app: ASGIApp, admission: Admission) -> None:
        self.app = app
        self.admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        request = Request(scope)
        place: Place | None = scope["state"].get("place")
        try:
            limit = self.limit(request.headers.get(TIMEOUT_HEADER))
            if counts(scope) and (not place or limit < self.admission.timeout):
                self.admission.check(limit)
        except HeedError as error:
            response = await answer_heed_error(request, error)
            return await response(scope, receive, send)
        request.state.deadline = Deadline(self.admission.clock() + limit, limit)
        if not counts(scope):
            return await self.app(scope, receive, send)
        return await self._count(scope, receive, send, place)

    def limit(self, header: str | None) -> float:
        """Return the seconds that a request with this X-Request-Timeout may take."""
        if header is None:
            return self.admission.timeout
        try:
            seconds = float(header)
        except ValueError:
            seconds = 0.0
        if not seconds > 0:
            raise Unparsable(
                f"{TIMEOUT_HEADER} is {shorten(header)!r}: give the seconds that you will wait,"
                " such as 2.5"
            )
        return min(seconds, self.admission.timeout)

    async def _count(self, scope: Scope, receive: Receive, send: Send, place: Place | None) -> None:
        """Give the request a place, if it has none, from the end of its body to its answer."""

        async def receive_and_enter() -> Message:
            nonlocal place
            message = await receive()
            if not place and message["type"] == "http.request" and not message.get("more_body"):
                place = Place(self.admission)
            return message

        async def send_and_look(message: Message) -> None:
            if place and message["type"] == "http.response.start":
                place.leave(completed=message["status"] < HTTPStatus.BAD_REQUEST)
            await send(message)

        try:
            await self.app(scope, receive_and_enter, send_and_look)
        finally:
            if place:
                place.leave()


def counts(scope: Scope) -> bool:
    return scope["method"] == "POST" and not path_of(scope).startswith(ADMINISTRATION)
