"""The paths of POST /v1/decode, /v1/score, /v1/attention and /v1/attribution; and what the layers
below the API know of its paths: which are asked for every few seconds, which need a key, and how
other services call them.

The files of these endpoints do without FastAPI, since commands answer by them: it takes longer to
import than `heed decode` takes to decode a word.
"""

import re
from typing import Any

from fastapi import APIRouter

from service.api.answering.attributed import AttributionAnswer
from service.api.answering.decode_answer import EVENT_SCHEMA, DecodeAnswer
from service.api.answering.examples import Examples
from service.api.answering.responses import PROBLEMS, describe_files
from service.api.answering.stream import EVENT_STREAM
from service.api.endpoints import attention, attribution, score
from service.api.endpoints.decode import body, endpoint
from service.api.reading.json_route import JsonRoute
from service.formats.json import JSON
from service.formats.writers import WRITERS
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

router = APIRouter(responses=PROBLEMS, route_class=JsonRoute)


def show_examples(examples: Examples) -> dict[str, Any]:
    """Return what an OpenAPI document says of a body with these examples."""
    return {"requestBody": {"content": {JSON: {"examples": examples}}}}


router.post(
    "/v1/decode",
    response_model=DecodeAnswer,
    responses={200: {"content": {EVENT_STREAM: {"schema": EVENT_SCHEMA}}}},
    summary="Decode sources into targets",
    tags=["models"],
    openapi_extra=show_examples(body.EXAMPLES),
)(endpoint.decode)
router.post(
    "/v1/score",
    response_model=score.ScoreAnswer,
    summary="Score targets",
    tags=["models"],
    openapi_extra=show_examples(score.EXAMPLES),
)(score.score)
router.post(
    "/v1/attention",
    response_model=attention.AttentionAnswer,
    responses=describe_files(each for each in WRITERS if each != JSON),
    summary="Show attention weights",
    tags=["attention"],
    openapi_extra=show_examples(attention.EXAMPLES),
)(attention.attention)
router.post(
    "/v1/attribution",
    response_model=AttributionAnswer,
    responses=describe_files(each for each in attribution.FORMATS if each != JSON),
    summary="Show what a target depends on",
    tags=["attention"],
    openapi_extra=show_examples(attribution.EXAMPLES),
)(attribution.attribution)


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
