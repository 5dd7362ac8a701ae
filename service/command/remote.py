"""A service that a command asks by its client."""

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from typing import Any

from httpx2 import HTTPStatusError, InvalidURL, TransportError

from service.client import BadKey, Heed, Refusal
from service.command.errors import error_of
from service.errors import StartupError
from service.formats.json import JSON, Document
from service.settings.variables import CLIENT_KEY

RETRY_SECONDS = 120.0  # seconds in which a service that is busy, or starts again, is asked again
PASSING = (
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,  # of a proxy, whose service starts again
    HTTPStatus.SERVICE_UNAVAILABLE,
)


class RemoteModel:
    """A model of the service at a URL: the named one, or else its only one."""

    name = version = ""

    def __init__(self, url: str, name: str | None, client: Heed) -> None:
        self._url, self._name, self._client = url, name, client

    async def find(self) -> None:
        """Find the name and the version. The service must answer now: it is waited for only once
        it did.

        A model that the service lacks has none: its requests are refused.
        """
        with translated(self._url):
            try:
                models = await asyncio.to_thread(self._client.models)
            except Refusal as refusal:
                if refusal.problem["status"] != HTTPStatus.NOT_FOUND:
                    raise
                detail = f"{self._url} has a path that the service lacks: leave out /v1 and such"
                raise StartupError(detail) from None
            for each in models:
                if self._name in (None, each["name"]):
                    self.name = each["name"]
                    self.version = f"{each['version']} {each['precision']}"

    async def ask(self, path: str, body: Mapping[str, Any], accept: str = JSON) -> bytes:
        """Return the service's answer. Raise HeedError and StartupError."""
        named = {**body, "model": self._name} if self._name else body
        until = time.monotonic() + RETRY_SECONDS
        with translated(self._url):
            while True:
                try:
                    answer = await asyncio.to_thread(self._client.post, path, accept, **named)
                except (Refusal, HTTPStatusError, TransportError) as error:
                    if not is_passing(error) or time.monotonic() > until:
                        raise
                else:
                    return answer.content
                await asyncio.sleep(1)

    async def ask_document(self, path: str, body: Mapping[str, Any]) -> Document:
        """Return the service's answer. Raise HeedError and StartupError."""
        answer = await self.ask(path, body)
        with translated(self._url):
            document = json.loads(answer)
            return {**document, "results": document["results"]}


@asynccontextmanager
async def open_remote(url: str, name: str | None) -> AsyncGenerator[RemoteModel]:
    """Open a model of the service at a URL, by the key HEED_API_KEY if there is one."""
    with translated(url):
        try:
            client = Heed(url, os.environ.get(CLIENT_KEY))
        except BadKey as error:
            raise StartupError(f"{CLIENT_KEY}: {error}") from None
    with client:
        model = RemoteModel(url, name, client)
        await model.find()
        yield model


def is_passing(error: Refusal | HTTPStatusError | TransportError) -> bool:
    """Return whether asking again may help."""
    match error:
        case Refusal():
            return error.problem["status"] in PASSING
        case HTTPStatusError():
            return error.response.status_code in PASSING
        case _:
            return True


@contextmanager
def translated(url: str) -> Generator[None]:
    """Raise the errors of the client as those of a command."""
    try:
        try:
            yield
        except Refusal as refusal:
            raise error_of(refusal.problem) from None
    except TransportError as error:
        advice = "start one by `heed serve`, or correct the address"
        raise StartupError(f"no service answers at {url} ({error}): {advice}") from error
    except (HTTPStatusError, InvalidURL, ValueError, KeyError, TypeError) as error:
        raise StartupError(f"{url} does not answer as a service of Heed does: {error}") from error
