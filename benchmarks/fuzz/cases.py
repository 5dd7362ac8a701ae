"""Requests that strangers may send: hostile, broken, or valid in every form of an answer."""

import gzip
import random
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.fuzz.bodies import ENDPOINTS, large_body, odd_body, text, to_json, valid_body

GETS = ["/", "/livez", "/readyz", "/v1/models", "/v1/models/g2p-en", "/docs", "/openapi.json"]
PATHS = [*(f"/v1/{name}" for name in ENDPOINTS), *GETS, "/web/page/api.js", "/web/"]
NO_METHODS, NO_PATHS = ("get", "BREW", "P OST"), ("*", "?", "/%")  # unknown to the parser
ODD_PATHS = [
    "//",
    "/../etc/passwd",
    "/web/../app.py",
    "/web/%2e%2e/app.py",
    "/web/..%2fapp.py",
    "/%00",
    "/v1/models/%ff",
    "/v1/models/a%0d%0ab",
    "/v1//decode",
    "/v1/decode/",
    *NO_PATHS,
    "http://other/v1/models",
    "/" + "x" * 9000,
    "/v1/models/" + "%F0%9F%98%80" * 90,
]
METHODS = [*NO_METHODS, "GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE"]
FORMS = [
    "application/json",
    "application/npz",
    "application/safetensors",
    "image/svg+xml",
    "image/png",
    "text/html",
    "text/event-stream",
]
EVENTS, PICTURES = [FORMS[0], FORMS[-1]], [FORMS[0], *FORMS[3:5]]
ODD_ACCEPTS = [
    "*/*",
    "",
    "image/*",
    "text/html;q=0",
    "a/b",
    "*/*;q=0",
    "image/png;q=2",
    ";;;",
    ",",
    "application/json;q=0.1, image/png;q=0.9",
    "x" * 5000,
    "image/svg+xml;q=",
    "*/*;q=.5",
]
CONTENT_TYPES = [
    "application/json",
    "application/json; charset=utf-16",
    "application/x+json",
    "json",
    "text/plain",
    "multipart/form-data; boundary=x",
    "application/x-www-form-urlencoded",
    "application/json;",
    "APPLICATION/JSON",
    "",
    "application/json, text/plain",
    "\xff",
]


@dataclass(frozen=True, slots=True)
class Case:
    """Bytes to send on a connection, and how many answers must come; None if none need to.

    `ends` sends an end of file after them, so that the server sees a half-closed connection.
    """

    kind: str
    content: bytes
    answers: int | None = 1
    ends: bool = False


def request(method: str, path: str, body: bytes, close: bool = True, **headers: str) -> bytes:
    """Return an HTTP request. Underscores in names of headers stand for hyphens."""
    given = {"Host": "localhost", "Content-Length": str(len(body)), **headers}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in given.items()]
    lines += ["Connection: close"] * close
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode("latin-1") + body


def post(path: str, body: Any, **headers: str) -> bytes:
    content = body if isinstance(body, bytes) else to_json(body)
    return request("POST", path, content, True, **{"Content_Type": "application/json", **headers})


def valid(chance: random.Random) -> Case:
    """A valid-looking request for one of the forms of its answer."""
    name = chance.choice([*ENDPOINTS, "attention", "attention", "attend"])
    offered = {"attention": FORMS[:-1], "attend": PICTURES, "decode": EVENTS}.get(name, FORMS[:1])
    body = valid_body(chance, name)
    accept = chance.choice(offered)
    if name == "decode":
        body["stream"] = accept == EVENTS[1]
    return Case(f"valid {name}", post(f"/v1/{name}", body, Accept=accept))


def odd_json(chance: random.Random) -> Case:
    name = chance.choice(ENDPOINTS)
    return Case("odd JSON", post(f"/v1/{name}", odd_body(chance, name)))


def large(chance: random.Random) -> Case:
    return Case("large", post(f"/v1/{chance.choice(ENDPOINTS)}", large_body(chance)))


def encoded(chance: random.Random) -> Case:
    """A body in another encoding, of another content type, or compressed."""
    content = to_json(valid_body(chance, "decode"))
    encoding = chance.choice(["utf-8", "utf-16", "utf-32", "utf-16-le", "utf-8-sig", "cp037"])
    match chance.randrange(4):
        case 0:
            content = content.decode().encode(encoding)
        case 1:
            place = chance.randrange(len(content))
            content = content[:place] + chance.randbytes(3) + content[place:]
        case 2:
            coding = chance.choice(["gzip", "deflate", "br", "zstd", "identity", "x", "gzip, br"])
            plain = content if chance.random() < 0.7 else b" " * 10_000_000  # a bomb
            content = gzip.compress(plain, 1, mtime=0) if "g" in coding else zlib.compress(plain, 1)
            return Case("coding", post("/v1/decode", content, Content_Encoding=coding))
        case _:
            pass  # only the content type is odd
    content_type = chance.choice(CONTENT_TYPES)
    return Case("encoding", post("/v1/decode", content, Content_Type=content_type))


def negotiated(chance: random.Random) -> Case:
    name = chance.choice(ENDPOINTS)
    accept = chance.choice([*ODD_ACCEPTS, *FORMS, ", ".join(chance.choices(FORMS, k=3))])
    return Case("accept", post(f"/v1/{name}", valid_body(chance, name), Accept=accept))


def elsewhere(chance: random.Random) -> Case:
    """Any method on any path."""
    method, path = chance.choice(METHODS), chance.choice([*PATHS, *ODD_PATHS])
    if method in NO_METHODS or path in NO_PATHS:
        return Case("broken", request(method, path, b""), answers=None)
    return Case("method", request(method, path, b""))


def broken(chance: random.Random) -> Case:
    """Bytes that are not HTTP, or of ambiguous length. The server may close the connection."""
    body = b'{"source":"heed"}'
    head = b"POST /v1/decode HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    lengths = [
        b"17",
        b"+17",
        b"-1",
        b"0x11",
        b"17, 17",
        b"17\r\nContent-Length: 3",
        b"1e1",
        b"",
        b"9" * 30,
    ]
    codings = [
        b"chunked",
        b"identity",
        b"chunked, chunked",
        b"gzip, chunked",
        b" chunked",
        b"xchunked",
    ]
    chunks = [
        b"11\r\n%b\r\n0\r\n\r\n",
        b"g\r\n%b",
        b"-1\r\n%b",
        b"ffffffffffffffff1\r\n%b",
        b"11;x=%b\r\n",
    ]
    length = b"Content-Length: " + chance.choice(lengths) + b"\r\n"
    coding = b"Transfer-Encoding: " + chance.choice(codings) + b"\r\n"
    chunk = chance.choice(chunks) % body
    contents = [
        head + length + b"\r\n" + body,
        head + length + coding + b"\r\n" + chunk,
        head + coding + b"\r\n" + chunk,
        head + b"X: \0\r\n\r\n",
        head + b"X : 1\r\n folded\r\n\r\n",
        head + b"X: " + b"a" * chance.choice([1000, 70_000]) + b"\r\n" + length + b"\r\n" + body,
        head.replace(b"1.1", chance.choice([b"1.0", b"0.9", b"2.0", b"9.9", b"1"]))
        + length
        + b"\r\n"
        + body,
        head + b"Expect: 100-continue\r\nContent-Length: 17\r\n\r\n" + body,
        head + b"Upgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 17\r\n\r\n" + body,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        chance.randbytes(chance.randint(1, 300)),
        (head + b"\r\n" + body)[: chance.randint(1, 90)],
        struct.pack(">BHH", 22, 0x0301, 200) + chance.randbytes(200),  # TLS
    ]
    return Case("broken", chance.choice(contents), answers=None, ends=True)


def pipelined(chance: random.Random) -> Case:
    """Several requests at once, the last of which closes the connection."""
    count = chance.randint(2, 12)
    bodies = [to_json({"source": text(chance)}) for _ in range(count)]
    sent = [
        request(
            "POST", "/v1/decode", body, close=body is bodies[-1], Content_Type="application/json"
        )
        for body in bodies
    ]
    return Case("pipelined", b"".join(sent), answers=count)


def half_closed(chance: random.Random) -> Case:
    """A request after which the client will send nothing more. The server may close at once."""
    name = chance.choice(ENDPOINTS)
    content = post(f"/v1/{name}", valid_body(chance, name))
    if chance.random() < 0.5:
        content = content[: chance.randint(1, len(content))]
    return Case("half-closed", content, answers=None, ends=True)


KINDS: list[tuple[int, Callable[[random.Random], Case]]] = [  # share in percent
    (42, valid),
    (20, odd_json),
    (1, large),
    (8, encoded),
    (7, negotiated),
    (8, elsewhere),
    (7, broken),
    (3, pipelined),
    (4, half_closed),
]


def case_of(seed: int, number: int) -> Case:
    """Return the case of this number: always the same for the same seed."""
    chance = random.Random(f"{seed}:{number}")
    kind = chance.choices([each for _, each in KINDS], [share for share, _ in KINDS])[0]
    return kind(chance)
