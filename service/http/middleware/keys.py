"""API keys, required on requests if the settings define any."""

import hashlib
import hmac
import os
import re
from collections.abc import Callable, Collection, Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import StartupError, Unauthorized
from service.http.messages.prefix import path_of
from service.settings.settings import Settings
from service.settings.variables import CLIENT_KEY

KEY_FORM = re.compile(r"[\x21-\x7e]{16,}")  # without white space, which ends a header's key
# Names in the OpenAPI document
SCHEME = "api_key"
ADMIN_SCHEME = "admin_key"


def read_keys(settings: Settings) -> list[str]:
    """Return the keys of the settings, none if both are left out.

    Raise StartupError for a file that cannot be read, for no key where one is meant, for a key that
    is short or that no header can carry, and if only HEED_API_KEY is set. No message holds a key.
    """
    keys = list[str]()
    if settings.api_keys is not None:
        keys += accept_keys("HEED_API_KEYS", settings.api_keys.get_secret_value().split(","))
    if settings.api_keys_file is not None:
        path = settings.api_keys_file
        try:
            lines = path.read_text(encoding="ascii", errors="replace").splitlines()
        except OSError as error:
            detail = f"{path} cannot be read ({error.strerror}): change HEED_API_KEYS_FILE"
            raise StartupError(detail) from error
        keys += accept_keys(str(path), lines)
    if not keys and os.environ.get(CLIENT_KEY):
        raise StartupError(
            f"{CLIENT_KEY} is a key of clients and would protect nothing: set HEED_API_KEYS to it,"
            " or unset it to serve without keys"
        )
    return keys


def read_admin_key(settings: Settings, keys: Sequence[str]) -> str | None:
    """Return the admin key. Raise StartupError as `read_keys` does, and if it is one of `keys`."""
    if settings.admin_key is None:
        return None
    (key,) = accept_keys("HEED_ADMIN_KEY", [settings.admin_key.get_secret_value()])
    if key in keys:
        raise StartupError("HEED_ADMIN_KEY is also an API key: every client could change models")
    return key


def accept_keys(place: str, given: Sequence[str]) -> list[str]:
    """Return the keys without spaces around them. Raise StartupError as `read_keys` does."""
    keys = [key.strip() for key in given if key.strip()]
    if not keys:
        raise StartupError(f"{place} holds no key: give one, or leave the setting out")
    if wrong := [number for number, key in enumerate(keys, 1) if not KEY_FORM.fullmatch(key)]:
        raise StartupError(
            f"{place}: key {wrong[0]} must have 16 or more ASCII characters and no space; make one"
            " with `openssl rand -hex 32`"
        )
    return keys


class Keys:
    """Compares keys in constant time, of which it holds only hashes: equally long ones, so that no
    length is told either."""

    def __init__(self, keys: Sequence[str], kind: str = "API key") -> None:
        """`kind` is their name in errors."""
        self._kind = kind
        self._digests = [digest(key.encode()) for key in keys]

    def check(self, authorization: str | None) -> None:
        """Raise Unauthorized unless the Authorization header holds one of the keys (RFC 6750)."""
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthorized(
                f"an {self._kind} is required: send the header Authorization: Bearer KEY"
            )
        self.check_key(key.strip())

    def check_key(self, key: str) -> None:
        """Raise Unauthorized unless this is one of the keys."""
        given = digest(key.encode(errors="replace"))
        same = [hmac.compare_digest(given, each) for each in self._digests]  # with all of them
        if not any(same):
            raise Unauthorized(
                f"this is not an {self._kind} of the service: ask its operator for one"
            )


def digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class KeyCheck:
    """Refuses with 401 a request without a key if its method and path need one. The endpoints of
    `keys_in_body` find the key in the body, and check it themselves."""

    def __init__(
        self,
        app: ASGIApp,
        keys: Keys,
        needs_key: Callable[[str, str], bool],
        keys_in_body: Collection[str],
    ) -> None:
        self.app = app
        self.keys = keys
        self.needs_key = needs_key
        self.keys_in_body = keys_in_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._is_closed(scope["method"], path_of(scope)):
            self.keys.check(Headers(scope=scope).get("authorization"))
        await self.app(scope, receive, send)

    def _is_closed(self, method: str, path: str) -> bool:
        return path not in self.keys_in_body and self.needs_key(method, path)
