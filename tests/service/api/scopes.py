"""Requests as a server gives them to the application."""

import asyncio


def decode_scope():
    return {
        "type": "http",
        "method": "POST",
        "path": "/v1/decode",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }


async def sent_by(application, messages, **scope):
    """Return what an application sends to a client of which only these messages come."""
    left, sent = iter(messages), []

    async def receive():
        return next(left, None) or await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    await application({**decode_scope(), **scope}, receive, send)
    return sent
