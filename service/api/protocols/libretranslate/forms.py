"""Read the fields of an HTML form, as browsers and HTTP libraries send them."""

import re
from collections.abc import Iterable, Iterator
from urllib.parse import parse_qsl

from service.api.reading.validation_errors import segment
from service.errors import Invalid, Unparsable, UnsupportedMediaType, shorten

URL_ENCODED = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
MOST_FIELDS = 64
LONGEST_HEADERS = 1024  # bytes of a part's headers: FIELD_NAME takes quadratic time
BOUNDARY = re.compile(r'boundary=(?:"([^"]+)"|([^\s;"]+))', re.IGNORECASE)
FIELD_NAME = re.compile(rb'content-disposition:[^\r\n]*[;\s]name="([^"\r\n]*)"', re.IGNORECASE)


def read_form(content_type: str, content: bytes, query: str) -> dict[str, str]:
    """Return the fields of a body and of the query in the address: a field of the query replaces
    one of the body. Empty ones are left out.

    Raise UnsupportedMediaType or Unparsable, and Invalid for a field that is repeated.
    """
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if kind == MULTIPART:
            pairs = list(read_multipart(content_type, content))
        elif kind == URL_ENCODED:
            pairs = read_parts(content.decode())
        else:
            found = shorten(content_type) or "absent"
            raise UnsupportedMediaType(
                f"content-type is {found}: send application/json, {URL_ENCODED} or {MULTIPART}"
            )
        return filled_fields(pairs) | filled_fields(read_parts(query))
    except ValueError as error:
        raise Unparsable(
            f"the form cannot be read: send at most {MOST_FIELDS} fields, encoded as UTF-8"
        ) from error


def filled_fields(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the fields that are not empty. Raise Invalid for one that is repeated."""
    fields: dict[str, str] = {}
    for name, value in pairs:
        if name in fields:
            raise Invalid.at(segment(name), "is given more than once: send it once, or a JSON list")
        if value:
            fields[name] = value
    return fields


def read_parts(text: str) -> list[tuple[str, str]]:
    """Return the fields of an encoded form. Raise ValueError."""
    return parse_qsl(text, errors="strict", max_num_fields=MOST_FIELDS)


def read_multipart(content_type: str, content: bytes) -> Iterator[tuple[str, str]]:
    """Yield the fields of a form in parts (RFC 7578). Raise ValueError, also for too many; raise
    Unparsable if a part, its name or the boundary is missing, or its headers are too long."""
    given = BOUNDARY.search(content_type)
    boundary = b"--" + (given[1] or given[2]).encode() if given else b""
    _, *parts = (b"\r\n" + content).split(b"\r\n" + boundary, MOST_FIELDS + 1)
    if not given or not parts or not parts[-1].startswith(b"--"):
        if given and len(parts) > MOST_FIELDS:
            raise ValueError
        raise Unparsable("the form has no end: send its parts between lines with the boundary")
    for part in parts[:-1]:
        headers, _, value = part.partition(b"\r\n\r\n")
        if len(headers) > LONGEST_HEADERS:
            raise Unparsable(
                f"a part of the form has {len(headers)} bytes of headers: send at most"
                f" {LONGEST_HEADERS}"
            )
        if not (name := FIELD_NAME.search(headers)):
            raise Unparsable("a part of the form has no name: give it in its Content-Disposition")
        yield name[1].decode(), value.decode()
