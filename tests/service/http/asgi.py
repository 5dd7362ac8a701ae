"""Requests to an ASGI application, and its door, without a server."""

import asyncio
import json
import sys
import time

from fastapi import FastAPI, Request

from service.http.limits import Budget, Record
from service.http.messages.problems import Paths
from service.http.middleware.answers import Errors
from service.http.middleware.door import Admission, Door, RequestLimits

JSON_HEADERS = [(b"content-type", b"application/json")]  # headers
WHOLE = {"type": "http.request", "body": b"{}", "more_body": False}
APP = FastAPI()  # what answers to errors look at
APP.state.paths = Paths("", [], {}, {})


def limits_of(admission, exempt="/v1/models/"):
    return RequestLimits(admission, 1 << 20, Budget(1 << 20), Budget(1 << 20), exempt)


def door_before(app, most=20, timeout=60.0, clock=time.monotonic):
    """A door, whose refusals are answered, and its admission."""
    admission = Admission(most, timeout, clock)
    return Errors(Door(app, limits_of(admission))), admission


def scope_of(method="POST", path="/v1/decode", headers=(), app=APP):
    scope = {"type": "http", "http_version": "1.1", "method": method, "path": path, "app": app}
    return scope | {"query_string": b"", "headers": [*headers]}


def request_for(path, app=APP):
    state = {"request_id": "mine", "record": Record()}
    return Request({**scope_of("POST", path, app=app), "server": ("localhost", 80), "state": state})


async def messages_of(app, scope, messages=(WHOLE,), sent=None):
    """The messages by which an application answers a client of which only `messages` come."""
    sent, coming = [] if sent is None else sent, iter(messages)

    async def send(message):
        sent.append(message)

    async def receive():
        return next(coming, None) or await asyncio.Event().wait()

    await app(scope, receive, send)
    return sent


async def called_for(app, path, body):
    """The status of the answer to a JSON body, and the names of the functions that the event loop
    has called meanwhile."""
    content, called = json.dumps(body).encode(), set()
    message = {"type": "http.request", "body": content, "more_body": False}
    sys.setprofile(lambda frame, _event, _: called.add(frame.f_code.co_name))
    try:
        sent = await messages_of(app, scope_of(path=path, headers=JSON_HEADERS), [message])
    finally:
        sys.setprofile(None)
    return sent[0]["status"], called


async def answer(door, method="POST", messages=(WHOLE,), path="/v1/decode", headers=()):
    """The status, headers and body of the answer to a request."""
    state = {"request_id": "mine", "record": Record()}
    scope = {**scope_of(method, path, headers), "state": state}
    sent = await messages_of(door, scope, messages)
    return sent[0]["status"], dict(sent[0]["headers"]), sent[-1]["body"]
