"""A route that validates its JSON body from the bytes: FastAPI parses it to Python objects first.

FastAPI still documents the endpoints, and answers every request whose body is not valid.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError

PLAIN = {"application/json", "application/json; charset=utf-8"}

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class JsonRoute(APIRoute):
    """Calls `endpoint(body, request)` with the body of a POST request."""

    def get_route_handler(self) -> Handler:
        by_fastapi = super().get_route_handler()
        if self.body_field is None:
            return by_fastapi
        model: Any = self.body_field.field_info.annotation
        read = TypeAdapter(model).validate_json

        async def handle(request: Request) -> Response:
            if request.headers.get("content-type", "").lower() in PLAIN:
                try:
                    body = read(await request.body())
                except ValidationError:
                    pass  # FastAPI reads the body again, and names its faults
                else:
                    return await self.endpoint(body=body, request=request)
            return await by_fastapi(request)

        return handle
