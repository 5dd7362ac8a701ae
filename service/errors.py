"""What can go wrong, and the status of the problem document (RFC 9457) each thing becomes.

HeedError
├── Unparsable            400
├── NotFound              404
├── NotAcceptable         406
├── TooLarge              413
├── UnsupportedMediaType  415
├── Invalid               422
├── Overloaded            429, try again
├── Abandoned             499, nobody reads it
├── PassFailed            500
├── Unavailable           503, try again
└── DeadlineExceeded      504
StartupError              the service does not start
"""

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Self

from pydantic import ValidationError

MOST_FAULTS = 10  # named in one refusal


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a request. `pointer` (RFC 6901) is into its body."""

    pointer: str
    detail: str


class HeedError(Exception):
    """`code` is for programs, `detail` for people; `retry_after` is in seconds."""

    status: int = HTTPStatus.INTERNAL_SERVER_ERROR
    code = "internal"
    retry_after: int | None = None

    def __init__(self, detail: str, faults: Sequence[Fault] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.faults = tuple(faults)

    @classmethod
    def at(cls, pointer: str, detail: str) -> Self:
        """One fault, at one place."""
        return cls.of([Fault(pointer, detail)])

    @classmethod
    def of(cls, faults: Sequence[Fault]) -> Self:
        named = faults[:MOST_FAULTS]
        places = (f"{fault.pointer or 'the body'} {fault.detail}" for fault in named)
        return cls("; ".join(places), named)


class Unparsable(HeedError):
    status = HTTPStatus.BAD_REQUEST
    code = "unparsable"


class NotFound(HeedError):
    status = HTTPStatus.NOT_FOUND

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class NotAcceptable(HeedError):
    status = HTTPStatus.NOT_ACCEPTABLE
    code = "not_acceptable"


class TooLarge(HeedError):
    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    code = "too_large"


class UnsupportedMediaType(HeedError):
    status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    code = "unsupported_media_type"


class Invalid(HeedError):
    status = HTTPStatus.UNPROCESSABLE_ENTITY
    code = "invalid"


class Overloaded(HeedError):
    status = HTTPStatus.TOO_MANY_REQUESTS
    code = "overloaded"
    retry_after = 1


class Abandoned(HeedError):
    status = 499
    code = "client_gone"


class PassFailed(HeedError):
    code = "pass_failed"


class Unavailable(HeedError):
    status = HTTPStatus.SERVICE_UNAVAILABLE
    code = "unavailable"
    retry_after = 5


class DeadlineExceeded(HeedError):
    status = HTTPStatus.GATEWAY_TIMEOUT
    code = "deadline_exceeded"


class StartupError(Exception):
    """A setting or a bundle with which the service must not start."""

    @classmethod
    def of(cls, what: str, error: ValidationError) -> Self:
        faults = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        return cls(f"{what}: {'; '.join(faults)}")
