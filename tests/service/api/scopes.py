"""The ASGI scope of a request."""


def decode_scope():
    return {
        "type": "http",
        "method": "POST",
        "path": "/v1/decode",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
