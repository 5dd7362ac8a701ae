"""Errors as problem documents (RFC 9457)."""

import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from fastapi import Request

from service.errors import Fault, HeedError

TITLES = {413: "Content Too Large", 422: "Unprocessable Content", 499: "Client Closed Request"}


def problem(
    request: Request, status: int, code: str, detail: str, faults: Sequence[Fault] = ()
) -> bytes:
    """`title` is the status in words (RFC 9110), since `code` names the error."""
    document: dict[str, Any] = {
        "type": "about:blank",
        "title": TITLES.get(status) or HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "instance": request.url.path,
        "code": code,
        "request_id": request.state.request_id,
        "errors": [{"pointer": fault.pointer, "detail": fault.detail} for fault in faults],
    }
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace")  # a name quoted may hold half a surrogate pair


def problem_of(request: Request, error: HeedError) -> bytes:
    return problem(request, error.status, error.code, error.detail, error.faults)
