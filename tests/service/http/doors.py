"""The door of a service, without a server."""

import time

from fastapi import FastAPI

from service.http.limits.admission import Admission, Door, Limits
from service.http.limits.budget import Budget
from service.http.limits.record import Record
from service.http.middleware.answers import Errors
from service.settings.settings import Settings

WHOLE = {"type": "http.request", "body": b"{}", "more_body": False}
APP = FastAPI()  # what answers to errors look at
APP.state.settings, APP.state.error_forms = Settings(), []


def limits_of(admission, exempt="/v1/models/"):
    return Limits(admission, 1 << 20, Budget(1 << 20), Budget(1 << 20), exempt)


def door_before(app, most=20, timeout=60.0, clock=time.monotonic):
    """A door, whose refusals are answered, and its admission."""
    admission = Admission(most, timeout, clock)
    return Errors(Door(app, limits_of(admission))), admission


async def answer(door, method="POST", messages=(WHOLE,), path="/v1/decode", headers=()):
    """The status, headers and body of the answer to a request."""
    sent, coming = [], iter(messages)

    async def send(message):
        sent.append(message)

    async def receive():
        return next(coming)

    scope = {"type": "http", "method": method, "path": path, "headers": headers, "app": APP}
    scope |= {"query_string": b"", "state": {"request_id": "mine", "record": Record()}}
    await door(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"]), sent[-1]["body"]
