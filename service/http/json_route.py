"""A route that validates its JSON body from the bytes: FastAPI parses it to Python objects first.

FastAPI still documents the endpoints, and answers every request whose body is not valid.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect

from service.errors import Abandoned
from service.http.waiting import TIMEOUT_HEADER

PLAIN = {"application/json", "application/json; charset=utf-8"}

TIMEOUT = {
    "name": TIMEOUT_HEADER,
    "in": "header",
    "description": "Seconds that the client will wait. A request that cannot be answered by then is"
    " refused with 429 at once, or answered with 504. The service's own limit is the largest.",
    "schema": {"type": "number", "exclusiveMinimum": 0},
    "example": 10,
}

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class JsonRoute(APIRoute):
    """Calls `endpoint(body, request)` with the body of a POST request.

    Raises TypeError if the endpoint has other parameters, which it could not resolve.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        if "POST" in options["methods"]:
            options["openapi_extra"] = {"parameters": [TIMEOUT]}
        super().__init__(path, endpoint, **options)

    def get_route_handler(self) -> Handler:
        by_fastapi = super().get_route_handler()
        if self.body_field is None:
            return by_fastapi
        needs = self.dependant
        if needs.dependencies or needs.path_params or needs.query_params or needs.header_params:
            raise TypeError(f"{self.path} has other parameters than body and request")
        model: Any = self.body_field.field_info.annotation
        read = TypeAdapter(model).validate_json

        async def handle(request: Request) -> Response:
            if request.headers.get("content-type", "").lower() in PLAIN:
                try:
                    body = read(await request.body())
                except ClientDisconnect as error:
                    raise Abandoned("the client left before its body had arrived") from error
                except ValidationError:
                    pass  # FastAPI reads the body again, and names its faults
                else:
                    return await self.endpoint(body=body, request=request)
            return await by_fastapi(request)

        return handle
