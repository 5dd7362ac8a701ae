"""POST /v1/encode"""

import base64
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Body, Request, Response

from service.api import examples, requests, responses
from service.api.answer_size import check_size
from service.api.steps import (
    answers_to,
    model_of,
    read,
    respond,
)
from service.arrays import FloatArray
from service.engine.messages import Entry
from service.errors import Invalid

router = APIRouter(responses=responses.PROBLEMS)


@router.post(
    "/v1/encode",
    response_model=responses.EncodeAnswer,
    summary="Encode sources",
    tags=["models"],
)
async def encode(
    body: Annotated[requests.EncodeRequest, Body(openapi_examples=examples.ENCODE)],
    request: Request,
) -> Response:
    """The encoder's output for every source: a vector a token, or one for all."""
    model = model_of(request, body.model)
    seconds, sources = await read(request, model.source, body.source, "/source")
    d_model = model.engine.bundle.manifest.config.d_model
    if body.dimensions is not None and body.dimensions > d_model:
        detail = f"{body.dimensions} is more than a vector has: give 1 to {d_model}"
        raise Invalid.at("/dimensions", detail)
    lengths = [len(source.tokens) if body.pooling == "none" else 1 for source in sources]
    check_size(request, 4 * d_model * sum(lengths), ", or pool")
    entries = [Entry(source_ids=np.array(source.ids)) for source in sources]
    answers = await answers_to(request, model, entries)
    field = "hidden" if body.pooling == "none" else "embedding"

    def write() -> dict[str, Any]:
        how = (body.pooling, body.normalize, body.dimensions)
        vectors = [pool(answer.encoded, *how) for answer in answers]
        results = [
            {
                field: to_base64(vector) if body.encoding == "base64" else vector,
                "shape": list(vector.shape),
                "tokens": [token.text for token in source.tokens],
            }
            for source, vector in zip(sources, vectors, strict=True)
        ]
        return {"model": model.name, "results": results}

    return await respond(request, write, seconds, answers)


def to_base64(vectors: FloatArray) -> str:
    return base64.b64encode(vectors.astype("<f4").tobytes()).decode()


def pool(
    memory: FloatArray, pooling: str, normalize: bool, dimensions: int | None = None
) -> FloatArray:
    """(S, M) -> (M,), or (S, M) if pooling is none; cut to `dimensions` of the M."""
    vectors = {
        "none": lambda: memory,
        "mean": lambda: memory.mean(axis=0),
        "max": lambda: memory.max(axis=0),
        "first": lambda: memory[0],
        "last": lambda: memory[-1],
    }[pooling]()
    vectors = vectors[..., :dimensions]
    if normalize:
        vectors = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.ascontiguousarray(vectors)
