"""A route that reads a JSON body, and refuses a body with faults by naming all of them.

FastAPI documents the endpoints from their signatures. It would parse and validate a body on the
event loop, however long that takes.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from service.api.reading.call import SMALL, Call
from service.api.reading.validation_errors import Body, validate
from service.errors import Abandoned, Invalid, TooLarge, Unparsable, UnsupportedMediaType, shorten
from service.http.limits import TIMEOUT_HEADER

# Lists and objects in a body. Memory and the garbage collector make them dearer than numbers: the
# 350,000 that fit into 1 MB would keep the interpreter's lock for 100 ms.
MOST_LISTS = 20_000
NAME = re.compile(rb'"\s*:')  # the end of a field's name, and sometimes a part of a text
JSON_TYPE = re.compile(r"application/([\w.-]+\+)?json\s*(;|$)")

TIMEOUT = {
    "name": TIMEOUT_HEADER,
    "in": "header",
    "description": "Seconds that the client will wait. A request that cannot be answered by then is"
    " refused with 429 at once, or answered with 504. The service's own limit applies if it is"
    " lower, and without this header.",
    "schema": {"type": "number", "exclusiveMinimum": 0},
}

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class JsonRoute(APIRoute):
    """Calls an endpoint with the body of a POST request, its Call, and the parameters of its path:
    `endpoint(body, call)`.

    Raise TypeError if an endpoint with a body has other parameters, which it could not resolve.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        if "POST" in options["methods"]:
            given = options.get("openapi_extra") or {}
            options["openapi_extra"] = {**given, "parameters": [TIMEOUT]}
        super().__init__(path, endpoint, **options)

    def get_route_handler(self) -> Handler:
        if self.body_field is None:
            answer = super().get_route_handler()

            async def handle_call(request: Request) -> Response:
                return await answer(Call(request.scope, request.receive))

            return handle_call
        needs = self.dependant
        if needs.dependencies or needs.query_params or needs.header_params:
            raise TypeError(f"{self.path} has other parameters than body, call and its path's")
        model: Any = self.body_field.field_info.annotation

        async def handle(request: Request) -> Response:
            call = Call(request.scope, request.receive)
            content = await receive_body(call)
            check_type(call)
            body = await read_body(call, model, content)
            return await self.endpoint(body=body, call=call, **call.path_params)

        return handle


async def receive(call: Call) -> bytes:
    """Return the body as it was sent. Raise Abandoned if the client leaves before."""
    try:
        return await call.body()
    except ClientDisconnect as error:
        raise Abandoned("the client left before its body had arrived") from error


async def receive_body(call: Call) -> bytes:
    """Return the body. Raise UnsupportedMediaType if it is compressed, and Abandoned."""
    content = await receive(call)
    coding = call.headers.get("content-encoding", "identity")
    if coding.lower() != "identity":
        raise UnsupportedMediaType(
            f"content-encoding {shorten(coding)} is not supported: send the body uncompressed"
        )
    return content


def check_type(call: Call) -> None:
    """Raise UnsupportedMediaType for a body of another type than JSON."""
    content_type = call.headers.get("content-type", "")
    if not JSON_TYPE.match(content_type.lower()):
        found = shorten(content_type) or "absent"
        raise UnsupportedMediaType(f"content-type is {found}: send application/json")


async def read_body(call: Call, model: type[Body], content: bytes) -> Body:
    """Return the validated body. Raise TooLarge, Unparsable or Invalid.

    A body above SMALL is read in a thread, under the concurrency limit.
    """
    if len(content) > SMALL:
        check_brackets(content)
        return await call.compute_reading(partial(parse, model, content), len(content))
    try:
        body = model.model_validate_json(content)
    except ValidationError:
        return parse(model, content)  # which names the faults
    if len(NAME.findall(content)) > count_fields(body):
        load(content)  # which finds a field that is given twice
    return body


def count_fields(value: Any) -> int:
    """Return how many fields were sent for a value, or fewer: not those that are null or
    ignored."""
    match value:
        case BaseModel():
            names = value.model_fields_set
            return len(names) + sum(count_fields(getattr(value, name)) for name in names)
        case dict():
            return len(value) + sum(map(count_fields, value.values()))
        case [BaseModel() | dict() | list(), *_]:
            return sum(map(count_fields, value))
        case _:
            return 0


def check_brackets(content: bytes) -> None:
    """Raise TooLarge for more lists and objects than MOST_LISTS. Brackets in texts count, too."""
    lists = content.count(b"[") + content.count(b"{")
    if lists > MOST_LISTS:
        raise TooLarge(
            f"the body has {lists} opening brackets, [ and {{, and the limit is {MOST_LISTS}: send"
            " fewer lists"
        )


def parse(model: type[Body], content: bytes) -> Body:
    """Return the validated body. Raise Unparsable, or Invalid with every fault and its place."""
    return validate(model, load(content))


def load(content: bytes) -> Any:
    """Return the JSON value. Raise Unparsable, or Invalid for an empty body and for an object with
    a field twice, of which RFC 8259 leaves open which one counts."""
    if not content:
        raise Invalid("the body is empty: send a JSON object")
    try:
        return json.loads(content, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise explain(error) from None


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of these fields. Raise Invalid if one is given twice."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise Invalid.at("", f"has {shorten(twice)!r} twice in an object: send it once")
    return fields


def explain(error: ValueError | RecursionError) -> Unparsable:
    match error:
        case json.JSONDecodeError(msg=reason, pos=place):
            return Unparsable(f"the body is not valid JSON: at character {place}: {reason}")
        case RecursionError():
            return Unparsable("the body is nested too deeply: send a flat JSON object")
        case UnicodeDecodeError():
            place = f"byte {error.object[error.start]:#04x} at {error.start}"
            return Unparsable(f"the body is not UTF-8: {place}; encode it as UTF-8")
        case _:  # a number of more than 4,300 digits
            return Unparsable(f"the body cannot be read ({error}): send a JSON object")
