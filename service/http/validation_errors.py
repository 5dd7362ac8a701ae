"""Turn FastAPI's validation errors into refusals that name every fault and its place."""

import re
from collections.abc import Sequence
from typing import Any, get_args

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel

from service.errors import (
    Fault,
    HeedError,
    Invalid,
    Unparsable,
    UnsupportedMediaType,
    describe_fault,
    shorten,
)

VARIANT = "as "  # how the tags of union variants begin, which pydantic puts into locations
JSON_TYPE = re.compile(r"application/([\w.-]+\+)?json\s*(;|$)")


def refuse(request: Request, error: RequestValidationError) -> HeedError:
    """Return Unparsable, UnsupportedMediaType or Invalid for a body that FastAPI refused."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        reason, place = first["ctx"]["error"], first["loc"][-1]
        return Unparsable(f"the body is not valid JSON: at character {place}: {reason}")
    content_type = request.headers.get("content-type", "")
    if not JSON_TYPE.match(content_type):
        found = shorten(content_type) or "absent"
        return UnsupportedMediaType(f"content-type is {found}: send application/json")
    body = request.scope["route"].body_field.field_info.annotation
    return Invalid.of([read_fault(each, body) for each in error.errors()])


def read_fault(error: Any, body: type[BaseModel]) -> Fault:
    """Return one of pydantic's errors as a fault. Its location starts with "body"."""
    location = error["loc"][1:]
    if error["type"] == "extra_forbidden":
        *parents, unknown = location
        known = ", ".join(field_names(body, parents))
        return Fault(
            pointer_to(parents) + segment(unknown), f"is not a field; the fields are {known}"
        )
    return Fault(pointer_to(location), describe_fault(error))


def field_names(model: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """Return the field names of the object that `path`, nested field names, leads to in `model`."""
    for name in path:
        annotation = model.model_fields[str(name)].annotation
        variants = [annotation, *get_args(annotation)]  # the model itself, or a union with None
        model = next(v for v in variants if isinstance(v, type) and issubclass(v, BaseModel))
    return list(model.model_fields)


def pointer_to(location: Sequence[int | str]) -> str:
    """Return a location of pydantic's as a JSON pointer (RFC 6901), without variants of unions."""
    return "".join(segment(part) for part in location if not str(part).startswith(VARIANT))


def segment(part: int | str) -> str:
    """Return one step of a JSON pointer. Keys are shortened: one may fill a body."""
    return "/" + shorten(str(part)).replace("~", "~0").replace("/", "~1")
