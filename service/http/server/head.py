"""Check the head of a request where the parser is lenient, and read past upgrades that are not
wanted (RFC 9110, RFC 9112)."""

from array import array
from collections.abc import Collection, Sequence
from typing import Protocol

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from service.errors import Unparsable, shorten
from service.settings.types import DEFAULT_PORTS

VERSIONS = ("1.0", "1.1")

Header = tuple[bytes, bytes]  # a name in lower case, and its value


class Receiver(Protocol):
    """The URL and headers of the present request, as far as the parser has found them."""

    url: bytes
    headers: list[Header]


class Parser(HttpRequestParser):
    """Ignores an upgrade (RFC 9110, section 7.8): curl and Java offer HTTP/2 in this way.

    httptools ends a request that has one after its headers, and would take its body for the next
    request. The same headers without Upgrade are passed to it once more, so that it reads the body.
    `on_headers_complete` and `on_message_complete` are then called twice: first while
    `should_upgrade()` is true.
    """

    def __init__(self, receiver: Receiver) -> None:
        super().__init__(receiver)
        # Discard bytes after a request with Connection: close. An error would cost it its answer.
        self.set_dangerous_leniencies(lenient_data_after_close=True)
        self._receiver = receiver

    def feed_data(self, data: "bytes | bytearray | memoryview | array[int]") -> None:
        rest = memoryview(data)
        while (end := self._feed(rest)) is not None:
            head = self._head()
            self.__init__(self._receiver)  # after Connection: close it would parse nothing more
            super().feed_data(head)
            rest = rest[end:]

    def _feed(self, data: memoryview) -> int | None:
        """Return the place after the headers of a request with an upgrade, if there is one."""
        try:
            super().feed_data(data)
        except HttpParserUpgrade as upgrade:
            return upgrade.args[0]
        return None

    def _head(self) -> bytes:
        """Return the head of the present request again, without Upgrade."""
        version = self.get_http_version().encode()
        first = b"%s %s HTTP/%s" % (self.get_method(), self._receiver.url, version)
        headers = [b"%s: %s" % each for each in self._receiver.headers if each[0] != b"upgrade"]
        return b"\r\n".join([first, *headers, b"", b""])


class Glance:
    """Bytes that begin with a whole POST request, body and all, or `whole` is false."""

    def __init__(self, data: bytes) -> None:
        self.url, self.headers = b"", list[Header]()
        self.whole = False
        parser = HttpRequestParser(self)
        try:
            parser.feed_data(data)
            self.whole &= parser.get_method() == b"POST"
            check_head(parser.get_http_version(), self.url, self.headers)
        except (HttpParserError, HttpParserUpgrade, Unparsable):
            self.whole = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_message_complete(self) -> None:
        self.whole = True


def check_head(version: str, target: bytes, headers: Sequence[Header]) -> None:
    """Raise Unparsable for another version than HTTP/1.0 and HTTP/1.1, and unless the request is
    for one host. HTTP/1.0 may leave the host out."""
    if version not in VERSIONS:
        raise Unparsable("the request line does not end in HTTP/1.1: send this version")
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1:
        raise Unparsable(f"the request has {len(hosts)} Host headers: send one")
    if not hosts and version == "1.1":
        raise Unparsable("the request has no Host header: send one")
    if hosts and not target.startswith((b"/", b"*")):
        check_target(target, hosts[0])


def check_target(target: bytes, host: bytes) -> None:
    """Raise Unparsable for a whole URL that is for another host than Host says (RFC 9112, section
    3.2.2), or has no path. Either may leave out the default port (RFC 9110, section 4.2.3)."""
    scheme, _, rest = target.partition(b"://")
    authority, slash, _ = rest.partition(b"/")
    port = DEFAULT_PORTS.get(scheme.lower().decode("latin-1"), ":").encode()

    def normalize(name: bytes) -> bytes:
        return name.lower().removesuffix(port).removesuffix(b":")

    if normalize(authority) != normalize(host) or not slash:
        url, name = shorten(target.decode("latin-1")), shorten(host.decode("latin-1"))
        raise Unparsable(f"the request is for {url} and its Host is {name}: send the path alone")


def check_upgrade(method: bytes, headers: Collection[Header]) -> None:
    """Raise Unparsable for a request after which the client would not speak HTTP any more."""
    if method == b"CONNECT":
        raise Unparsable("CONNECT is for proxies, which this service is not: send POST or GET")
    wanted = b",".join(value for name, value in headers if name == b"upgrade").lower()
    if b"websocket" in [name.strip() for name in wanted.split(b",")]:
        raise Unparsable(
            'websockets are not supported: POST to /v1/decode with "stream": true for'
            " server-sent events"
        )
