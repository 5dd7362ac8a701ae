"""Refuse requests for hosts that this service is not, which stops DNS rebinding: a page of another
site whose name resolves to this machine could otherwise read every answer."""

import ipaddress
from collections.abc import Iterable, Sequence
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import Misdirected, shorten
from service.settings.settings import Settings

LOCAL = ["localhost", "*.localhost"]
ANY_HOST = ["*"]


def hosts_of(settings: Settings) -> Sequence[str]:
    """Return the names that requests may be for, in lower case: by default localhost names if bound
    to loopback, else any."""
    named = [host.lower() for host in settings.allowed_hosts]
    return named or (LOCAL if is_loopback(settings.host) else ANY_HOST)


def is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host.lower() == "localhost"


class HostCheck:
    """Refuses with 421 a request whose Host is not among `hosts`, or an IP address.

    A request of HTTP/1.0 without Host, which no browser sends, is accepted.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self.app = app
        self.hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = Headers(scope=scope).getlist("host")
            if wrong := [host for host in given if not allows(self.hosts, host)]:
                raise self.refusal(shorten(name_of(wrong[0])))
        await self.app(scope, receive, send)

    def refusal(self, name: str) -> Misdirected:
        known = ", ".join(self.hosts)
        return Misdirected(
            f"this service does not answer for the host {name!r}: use its IP address or {known},"
            " or name the host in HEED_ALLOWED_HOSTS"
        )


def allows(hosts: Iterable[str], given: str) -> bool:
    """Return whether a Host header is among `hosts`, or an IP address: only a name can be made to
    lead elsewhere, and probes use addresses."""
    name = name_of(given)
    return is_address(name) or any(
        name == host or host == "*" or (host.startswith("*.") and name.endswith(host[1:]))
        for host in hosts
    )


def name_of(host: str) -> str:
    """Return a Host header in lower case, without its port and the brackets of an IPv6 address."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


def is_address(name: str) -> bool:
    with suppress(ValueError):
        return bool(ipaddress.ip_address(name))
    return False
