"""What can go wrong, and the problem document (RFC 9457) each thing becomes.

HeedError
├── Unparsable            400
├── NotFound              404
├── TooLarge              413
├── UnsupportedMediaType  415
├── Invalid               422
├── PassFailed            500
├── Overloaded            429, try again
├── Unavailable           503, try again
├── Abandoned             499, nobody reads it
└── DeadlineExceeded      504
StartupError              the service does not start
"""

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus


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


class Unparsable(HeedError):
    status = HTTPStatus.BAD_REQUEST
    code = "unparsable"


class NotFound(HeedError):
    status = HTTPStatus.NOT_FOUND

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class TooLarge(HeedError):
    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    code = "too_large"


class UnsupportedMediaType(HeedError):
    status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    code = "unsupported_media_type"


class Invalid(HeedError):
    status = HTTPStatus.UNPROCESSABLE_ENTITY
    code = "invalid"


class PassFailed(HeedError):
    code = "pass_failed"


class Overloaded(HeedError):
    status = HTTPStatus.TOO_MANY_REQUESTS
    code = "overloaded"
    retry_after = 1


class Unavailable(HeedError):
    status = HTTPStatus.SERVICE_UNAVAILABLE
    code = "unavailable"
    retry_after = 5


class Abandoned(HeedError):
    status = 499
    code = "client_gone"


class DeadlineExceeded(HeedError):
    status = HTTPStatus.GATEWAY_TIMEOUT
    code = "deadline_exceeded"


class StartupError(Exception):
    """A setting or a bundle with which the service must not start."""
