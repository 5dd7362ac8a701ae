"""Bytes of requests, and connections that send them."""

import contextlib
import json
import re
import socket
import time
import urllib.request
from urllib.parse import urlsplit

import pytest

BODY = b'{"source": "heed"}'
HEAD = (
    b"POST /v1/decode HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    b"content-type: application/json\r\n"
)
OK = b'{"status":"ok"}\n'
END = b"}}\n"  # of an answer of /v1/decode


def open_to(server):
    """A connection that sends each part of a request as it gets it."""
    address = urlsplit(server)
    connection = socket.create_connection((address.hostname, address.port), timeout=60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def exchange(server, parts, half_close=False):
    """Send bytes, and return all that is answered until the connection ends. After a half-close
    the service ends it, when it has answered."""
    with open_to(server) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has closed already
            for part in parts:
                connection.sendall(part)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
        received = b""
        with contextlib.suppress(ConnectionResetError):  # it closed before all was sent
            while data := connection.recv(1 << 16):
                received += data
        return received


def receive(connection, end):
    """What is answered, up to `end`."""
    received = b""
    while not received.endswith(end):
        part = connection.recv(1 << 16)
        assert part, f"the connection ended after {received[-80:]}"
        received += part
    return received


def answers_in(received):
    """The status of each answer, and what it says: a detail, a text or whether all is well."""
    found = []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        if head != b"HTTP/1.1 100 Continue":
            length = int(re.search(rb"\r\ncontent-length: (\d+)", head, re.IGNORECASE)[1])
            document, rest = json.loads(rest[:length]), rest[length:]
            said = document.get("detail") or document.get("status")
            found.append((int(head[9:12]), said or document["results"][0]["hypotheses"][0]["text"]))
        received = rest
    return found


def count_left(server):
    """How many requests were given up because their clients left."""
    with urllib.request.urlopen(f"{server}/metrics") as answer:
        found = re.search(
            r'heed_rejected_total{reason="client_gone"} (\d+)', answer.read().decode()
        )
    return int(found[1]) if found else 0


PROBE = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"


def connect(port, buffer=None):
    """A client. With a small receive `buffer` it is sent segments as over Ethernet: of an answer
    that it does not read, the kernel then holds some 75 KB, instead of 3 MB."""
    client = socket.socket()
    if buffer:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1460)
    client.settimeout(60)
    client.connect(("127.0.0.1", port))
    return client


def post(path, body, length=None, accept="*/*"):
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json"
    head += f"\r\naccept: {accept}"
    return f"{head}\r\ncontent-length: {length or len(content)}\r\n\r\n".encode() + content


def received_until_closed(client, drip=b""):
    """What the service sends to a client that sends `drip` whenever it has received nothing for a
    tenth of a second."""
    received, end = b"", time.monotonic() + 60
    client.settimeout(0.1)
    while time.monotonic() < end:
        try:
            data = client.recv(1 << 16)
        except TimeoutError:
            with contextlib.suppress(ConnectionError):  # what was sent before the end can be read
                client.sendall(drip)
        except ConnectionError:
            return received
        else:
            if not data:
                return received
            received += data
    pytest.fail("the connection was not closed")


NUMBERS = [0.5] * 1200
ATTEND = {"mechanism": "average", "queries": NUMBERS, "keys": NUMBERS, "values": NUMBERS}

CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


def chunks(body, size):
    for start in range(0, len(body), size):
        part = body[start : start + size]
        yield b"%x\r\n%s\r\n" % (len(part), part)


WORD = HEAD.replace(b"connection: close\r\n", b"") + b"content-length: 18\r\n\r\n" + BODY
