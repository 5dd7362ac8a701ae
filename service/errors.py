"""The errors of the service, and the HTTP status of each (RFC 9457, problem documents).

HeedError
├── Unparsable            400
├── Unauthorized          401
├── Forbidden             403
├── NotFound              404
├── NotAcceptable         406
├── Conflict              409
├── TooLarge              413
├── UnsupportedMediaType  415
├── Misdirected           421
├── Invalid               422
├── Overloaded            429, retry
├── Abandoned             499, the client has gone
├── PassFailed            500
├── Unavailable           503, retry
└── DeadlineExceeded      504
StartupError              the service does not start
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Self

from pydantic import ValidationError
from pydantic_core import ErrorDetails

MOST_FAULTS = 10  # reported in one refusal
LONGEST_QUOTE = 64  # characters quoted from a request
LONGEST_LINE = 450  # characters of an error at start


def shorten(text: str, limit: int = LONGEST_QUOTE) -> str:
    """Return at most `limit` characters of `text`, then an ellipsis if more were cut.

    Clients choose the text: an error that repeats all of it could be as large as the request.
    """
    return text if len(text) <= limit else f"{text[:limit]}…"


def one_line(text: str) -> str:
    """Return `text` without line breaks, and without characters that control terminals."""
    words = " ".join(text.split())
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in words)


def shorten_line(text: str, limit: int) -> str:
    """Return at most `limit` characters of `text` as one line, without reading much more of it."""
    return shorten(one_line(text[: 4 * limit]), limit)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a request. `pointer` (RFC 6901) points into its body; `unknown` has the
    parts of a text that the vocabulary lacks. `advice` follows the detail in the sentence on all
    faults, and is too long to say twice."""

    pointer: str
    detail: str
    unknown: Sequence[str] = ()
    advice: str = ""

    @property
    def sentence(self) -> str:
        """The fault as a sentence on its field, or on a text in it such as q/1."""
        return f"{self.pointer.removeprefix('/') or 'the body'} {self.detail}{self.advice}"


class HeedError(Exception):
    """A request that fails. `code` is for programs, `detail` for people, `retry_after` in seconds.

    The pointer and the detail of a fault make one sentence: "/beam_size must be at most 64".
    """

    status: int = HTTPStatus.INTERNAL_SERVER_ERROR
    code = "internal"
    retry_after: int | None = None
    more = 0  # faults that were found in addition to `faults`
    advice = ""  # follows the detail on our own paths: it names a field that other protocols lack

    def __init__(self, detail: str, faults: Sequence[Fault] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.faults = tuple(faults)

    @classmethod
    def at(cls, pointer: str, detail: str) -> Self:
        """Return the error of one fault."""
        return cls.of([Fault(pointer, detail)])

    @classmethod
    def of(cls, faults: Sequence[Fault], more: int = 0) -> Self:
        """Return the error of several faults. It names the first MOST_FAULTS, and counts the others
        and `more`, which the caller has found without giving them."""
        named = faults[:MOST_FAULTS]
        more += len(faults) - len(named)
        places = (f"{fault.pointer or 'the body'} {fault.detail}{fault.advice}" for fault in named)
        total = f"{len(named) + more} faults, the first {len(named)}: " if more else ""
        if len(named) == MOST_FAULTS and not more:  # a reader stops there: there may be more
            total = f"the first {MOST_FAULTS} faults: "
        error = cls(total + "; ".join(places), named)
        error.more = more
        return error

    def change_faults(self, change: Callable[[Fault], Fault]) -> Self:
        """Return this error with its faults changed or, if it has none, with its detail changed as
        that of a fault of the whole body."""
        if self.faults:
            said = HeedError.of([*map(change, self.faults)], self.more)
        else:
            said = HeedError(change(Fault("", self.detail)).detail)
        changed = type(self).__new__(type(self), said.detail)  # subclasses differ in __init__
        changed.__dict__.update(self.__dict__, detail=said.detail, faults=said.faults)
        return changed

    def forget_frames(self) -> Self:
        """Return this error without its traceback and its causes. Their frames hold the work that
        failed, and often the error itself: only the garbage collector could free them."""
        self.__cause__ = self.__context__ = None
        return self.with_traceback(None)


class Unparsable(HeedError):
    status = HTTPStatus.BAD_REQUEST
    code = "unparsable"


class Unauthorized(HeedError):
    status = HTTPStatus.UNAUTHORIZED
    code = "unauthorized"


class Forbidden(HeedError):
    status = HTTPStatus.FORBIDDEN
    code = "forbidden"


class NotFound(HeedError):
    status = HTTPStatus.NOT_FOUND

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class NotAcceptable(HeedError):
    status = HTTPStatus.NOT_ACCEPTABLE
    code = "not_acceptable"


class Conflict(HeedError):
    status = HTTPStatus.CONFLICT
    code = "conflict"


class TooLarge(HeedError):
    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    code = "too_large"


class UnsupportedMediaType(HeedError):
    status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    code = "unsupported_media_type"


class Misdirected(HeedError):
    status = HTTPStatus.MISDIRECTED_REQUEST
    code = "misdirected"


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
    """A setting or a bundle with which the service must not start. One line: a bundle may choose
    parts of it, such as names of files."""

    def __init__(self, detail: str) -> None:
        super().__init__(shorten_line(detail, LONGEST_LINE))

    @classmethod
    def of(cls, what: str, error: ValidationError) -> Self:
        """Return the error of `what`, such as "settings: port must be at most 65535"."""
        faults = error.errors(include_url=False, include_input=False)[:MOST_FAULTS]
        places = (
            " ".join(filter(None, (shorten(".".join(map(str, each["loc"]))), describe_fault(each))))
            for each in faults
        )
        return cls(f"{what}: {'; '.join(places)}")


# pydantic's types of errors -> the rest of a sentence that begins with the name of the field.
# https://docs.pydantic.dev/latest/errors/validation_errors
SENTENCES = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "dict_type": "must be a JSON object",
    "enum": "must be {expected}",
    "finite_number": "must be a finite number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_from_float": "must be an integer",
    "int_parsing": "must be an integer",
    "int_type": "must be an integer",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "list_type": "must be a list",
    "literal_error": "must be {expected}",
    "missing": "is required",
    "model_attributes_type": "must be a JSON object",
    "model_type": "must be a JSON object",
    "path_not_directory": "must be an existing folder",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_long": "must have {max_length} or fewer characters",
    "string_too_short": "must have {min_length} or more characters",
    "string_type": "must be a string",
    "string_unicode": "must be valid Unicode",
    "too_long": "must have {max_length} or fewer items",
    "too_short": "must have {min_length} or more items",
    "value_error": "{error}",
}


def describe_fault(error: ErrorDetails) -> str:
    """Return what is wrong, worded to follow the name of the field; else in pydantic's words."""
    kind, context = error["type"], error.get("ctx", {})
    if context.get("field_type") == "Value":  # a text that our own validators have seen
        kind = f"string_{kind}"
    sentence = SENTENCES.get(kind)
    return sentence.format(**context) if sentence else error["msg"]
