"""Answer errors with problem documents (RFC 9457), or in the form of a protocol on its paths."""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from http import HTTPStatus
from itertools import chain
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Scope

from service.errors import (
    Fault,
    HeedError,
    Overloaded,
    TooLarge,
    Unauthorized,
    Unparsable,
    UnsupportedMediaType,
    shorten,
)
from service.http.messages.prefix import begins, path_of, prefix_of
from service.http.messages.security import SECURITY_HEADERS

PROBLEM = "application/problem+json"
TITLES = {413: "Content Too Large", 422: "Unprocessable Content", 499: "Client Closed Request"}
LONGEST_DETAIL = 1000  # characters; ten faults of one request are joined in `detail`
LARGEST = 4096  # bytes of a problem document


def write_problem(error: HeedError, path: str, request_id: str) -> bytes:
    """Return the problem document of `error`, at most LARGEST bytes.

    `title` is the status in words (RFC 9110), since `code` names the error.
    """
    document: dict[str, Any] = {
        "type": "about:blank",
        "title": TITLES.get(error.status) or HTTPStatus(error.status).phrase,
        "status": int(error.status),
        "detail": shorten(error.detail, LONGEST_DETAIL) + error.advice,
        "instance": shorten(path, LONGEST_DETAIL),
        "code": error.code,
        "request_id": request_id,
        "errors": [*map(write_fault, error.faults)],
    }
    longest = LONGEST_DETAIL
    while len(content := encode_json(document)) > LARGEST:
        longest //= 2  # an escaped character takes six bytes, and there may be ten faults
        for part in (document, *document["errors"]):
            names = part.keys() & {"detail", "instance", "pointer"}
            part |= {name: shorten(part[name], longest) for name in names}
            part.pop("unknown", None)
    return content


def write_fault(fault: Fault) -> dict[str, Any]:
    part = {"pointer": fault.pointer, "detail": shorten(fault.detail, LONGEST_DETAIL)}
    return part | ({"unknown": [*map(shorten, fault.unknown)]} if fault.unknown else {})


@dataclass(frozen=True, slots=True, eq=False)
class ErrorForm:
    """How errors are answered on these paths, and below them.

    `write` returns the body, given the error, the path and the id of the request. `statuses` are
    sent in place of ours. `endpoints` are the methods of each path, unless the OpenAPI document
    has them.
    """

    paths: Sequence[str]
    write: Callable[[HeedError, str, str], bytes]
    statuses: Mapping[int, int] = field(default_factory=dict[int, int])
    media_type: str = "application/json"
    endpoints: Mapping[str, Collection[str]] = field(default_factory=dict[str, Collection[str]])

    def status_of(self, status: int) -> int:
        """Return what is sent in place of one of our statuses."""
        return self.statuses.get(status, status)


@dataclass(frozen=True, slots=True)
class Paths:
    """The paths of an application: the `prefix` of all; the forms of errors; the `patterns` of its
    own, by themselves; and of the `others` the HEED_PROTOCOLS that would add each."""

    prefix: str
    forms: Sequence[ErrorForm]
    patterns: Mapping[str, re.Pattern[str]]
    others: Mapping[str, str]


PROBLEM_FORM = ErrorForm([], write_problem, media_type=PROBLEM)


def form_at(path: str, forms: Sequence[ErrorForm]) -> ErrorForm:
    """Return the form of errors at this path: problem documents, unless it belongs to another."""
    found = (form for form in forms if any(begins(path, each) for each in form.paths))
    return next(found, PROBLEM_FORM)


def paths_of(scope: Scope) -> Paths:
    return scope["app"].state.paths


def form_of(request: Request) -> ErrorForm:
    return form_at(path_of(request.scope), paths_of(request.scope).forms)


def write_whole_answer(
    error: HeedError, path: str, request_id: str, form: ErrorForm = PROBLEM_FORM
) -> bytes:
    """Return the whole answer, after which the connection is closed, where no application runs."""
    content = form.write(error, path, request_id) + b"\n"
    status = HTTPStatus(form.status_of(error.status))
    headers = {
        "Connection": "close",
        "Content-Type": form.media_type,
        "Content-Length": str(len(content)),
        "X-Request-Id": request_id,
        **({"Retry-After": str(error.retry_after)} if error.retry_after else {}),
        **SECURITY_HEADERS,
    }
    lines = [f"HTTP/1.1 {status} {status.phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


def encode_json(document: dict[str, Any]) -> bytes:
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace")  # a quoted name may hold half a surrogate pair


def problem(request: Request, error: HeedError, form: ErrorForm = PROBLEM_FORM) -> bytes:
    """Return the body of the answer to `error`, and record the error."""
    request.state.record.error = error
    return form.write(error, request.url.path, request.state.request_id)


def answer_problem(
    request: Request, error: HeedError, headers: Mapping[str, str] | None = None
) -> Response:
    """Return the answer to an error, and record the error."""
    form = form_of(request)
    content = problem(request, error, form) + b"\n"
    return Response(content, form.status_of(error.status), headers, form.media_type)


async def answer_heed_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HeedError)
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after else {}
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    return answer_problem(request, error, headers)


class HttpError(HeedError):
    """An error of the framework or the middleware: unknown paths and methods, long bodies."""

    def __init__(self, status: HTTPStatus, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        ours = (
            each.code
            for each in (Unparsable, TooLarge, UnsupportedMediaType, Overloaded)
            if each.status == status
        )
        self.code = next(ours, status.name.lower())


async def answer_http_exception(
    names: Mapping[str, str], request: Request, error: Exception
) -> Response:
    """Answer an error of the framework, such as an unknown path: say which paths there are. `names`
    are our paths by words in those of other services.

    No route declares OPTIONS, which is answered by the methods (RFC 9110, section 9.3.7).
    """
    assert isinstance(error, HTTPException)
    status, headers = HTTPStatus(error.status_code), dict(error.headers or {})
    detail = error.detail
    if status == HTTPStatus.NOT_FOUND:
        if not path_of(request.scope):  # a browser's address of the page, without its slash
            return RedirectResponse(f"{prefix_of(request.scope)}/")
        detail = describe_unknown_path(request, names)
    elif status == HTTPStatus.METHOD_NOT_ALLOWED:
        methods = methods_at(request, headers.get("Allow", "GET"))  # static files send no Allow
        headers["Allow"] = ", ".join([*methods, "OPTIONS"])
        if request.method == "OPTIONS":
            return Response(status_code=HTTPStatus.NO_CONTENT, headers=headers)
        needed = paths_of(request.scope).others.get(path_of(request.scope))
        without = f" without HEED_PROTOCOLS={needed}" if needed and request.method == "POST" else ""
        detail = f"{request.method} is not supported here{without}: send {' or '.join(methods)}"
        if not form_of(request).endpoints:
            detail += f"; {prefix_of(request.scope)}/docs shows how"
    return answer_problem(request, HttpError(status, detail), headers)


def describe_unknown_path(request: Request, names: Mapping[str, str]) -> str:
    """Return the detail of an unknown path: it lists the endpoints of the protocol that has the
    paths around it, or else those of the OpenAPI document."""
    detail = f"{shorten(request.url.path)} does not exist"
    prefix, path = prefix_of(request.scope), path_of(request.scope)
    if own := form_of(request).endpoints:
        return f"{detail}; the endpoints of this protocol are {list_endpoints(own, prefix)}"
    paths: dict[str, dict[str, Any]] = request.app.openapi()["paths"]
    known = paths_of(request.scope).others
    if setting := next((known[each] for each in known if begins(path, each)), None):
        detail += f" unless the service is started with HEED_PROTOCOLS={setting}"
    near = near_path(shorten(path), paths, names)
    detail += f": did you mean {prefix}{near}?" if near else ";"
    return f"{detail} {prefix}/docs describes the endpoints: {list_endpoints(paths, prefix)}"


def near_path(unknown: str, known: Collection[str], names: Mapping[str, str]) -> str | None:
    """Return the path that does what other services offer at `unknown`, else the one spelled
    alike, if any."""
    unknown = unknown.lower()
    words = reversed(re.findall(r"[a-z]+", unknown))  # the last one says most
    meant = (names[word] for word in words if word in names)
    return next(chain(meant, get_close_matches(unknown, known, 1)), None)


def list_endpoints(paths: Mapping[str, Collection[str]], prefix: str) -> str:
    return ", ".join(
        f"{method.upper()} {prefix}{path}" for path, methods in paths.items() for method in methods
    )


def methods_at(request: Request, allow: str) -> list[str]:
    """Return the methods of an Allow header (RFC 9110, section 10.2.1), with HEAD where GET is. The
    framework's header knows the first route of the path; the document knows the others."""
    documented = request.app.openapi()["paths"].get(path_of(request.scope), {})
    methods = {*allow.split(", "), *map(str.upper, documented)}
    return sorted(methods | {"HEAD"} if "GET" in methods else methods)


def answer_unexpected(request: Request) -> Response:
    """Answer a bug of ours, which is logged."""
    ours = HeedError("the service failed on this request and logged why: report its request_id")
    return answer_problem(request, ours)
