"""The paths of the API for the layers below it: which are asked for every few seconds, which need a
key, and how other services call them."""

import re
from typing import Any

from service.http.middleware.keys import ADMIN_SCHEME, SCHEME

# Paths that are asked for every few seconds: logged only if they fail, and never traced.
QUIET = re.compile(
    "/(livez|readyz(/[^/]+)?|metrics|health"
    "|v2/health/(live|ready)|v2/models/[^/]+(/versions/[^/]+)?/ready)"
)
# Not that of a version: its answer tells which one there is.
READY = re.compile(r"/v2/models/[^/]+/ready")
CHANGES = "/v1/models/"  # POST requests below it change the models
OTHER_PATHS = {  # our paths, by words in those of other services
    "chat": "/v1/decode",
    "completion": "/v1/decode",
    "completions": "/v1/decode",
    "embed": "/v1/encode",
    "embedding": "/v1/encode",
    "embeddings": "/v1/encode",
    "generate": "/v1/decode",
    "generation": "/v1/decode",
    "health": "/livez",
    "healthz": "/livez",
    "infer": "/v1/decode",
    "inference": "/v1/decode",
    "invocations": "/v1/decode",
    "messages": "/v1/decode",
    "ping": "/livez",
    "predict": "/v1/decode",
    "predictions": "/v1/decode",
    "ready": "/readyz",
    "rerank": "/v1/score",
    "responses": "/v1/decode",
    "summarize": "/v1/decode",
    "translate": "/v1/decode",
    "translation": "/v1/decode",
}


def needs_key(method: str, path: str) -> bool:
    """Return whether a request needs a key, if there are any: every POST, and all below /v1.

    Open are OPTIONS, to which browsers add no key, and probes, metrics, the page and the
    documentation, which send nothing of a model.
    """
    reads = method in ("GET", "HEAD")
    tells = path.startswith(("/v1/", "/v2/models/")) and not READY.fullmatch(path)
    return method != "OPTIONS" and (not reads or tells)


def document_keys(document: dict[str, Any], *, keys: bool, admin: bool) -> None:
    """Say in a finished OpenAPI document which operations need a key: /docs then asks for it.

    Those that need the admin key say so themselves.
    """
    if not keys and not admin:
        return
    schemes = document["components"].setdefault("securitySchemes", {})
    bearer = {"type": "http", "scheme": "bearer"}
    if admin:
        schemes[ADMIN_SCHEME] = {**bearer, "description": "HEED_ADMIN_KEY."}
    if not keys:
        return
    schemes[SCHEME] = {**bearer, "description": "One of HEED_API_KEYS."}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if needs_key(method.upper(), path):
                operation.setdefault("security", [{SCHEME: []}])
