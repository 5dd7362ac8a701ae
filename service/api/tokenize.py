"""POST /v1/tokenize and /v1/detokenize"""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Request, Response

from service.api import examples, requests, responses
from service.api.serialize import write_tokens
from service.api.steps import (
    model_of,
    read,
    respond,
)

router = APIRouter(responses=responses.PROBLEMS)


@router.post(
    "/v1/tokenize",
    response_model=responses.TokenizeAnswer,
    summary="Split texts into tokens",
    tags=["models"],
)
async def tokenize(
    body: Annotated[requests.TokenizeRequest, Body(openapi_examples=examples.TOKENIZE)],
    request: Request,
) -> Response:
    """What the encoder reads of a text, or what the decoder is to predict; specials included."""
    model = model_of(request, body.model)
    tokenizer = model.source if body.side == "source" else model.target
    seconds, texts = await read(request, tokenizer, body.text, "/text")

    def write() -> dict[str, Any]:
        return {"model": model.name, "results": [write_tokens(text) for text in texts]}

    return await respond(request, write, seconds, size=sum(map(len, texts)))


@router.post(
    "/v1/detokenize",
    response_model=responses.DetokenizeAnswer,
    summary="Join tokens to texts",
    tags=["models"],
)
async def detokenize(
    body: Annotated[requests.DetokenizeRequest, Body(openapi_examples=examples.DETOKENIZE)],
    request: Request,
) -> Response:
    """The text of ids, and where in it each token stands."""
    model = model_of(request, body.model)
    tokenizer = model.source if body.side == "source" else model.target
    seconds, texts = await read(request, tokenizer, body.token_ids, "/token_ids")

    def write() -> dict[str, Any]:
        results = [{"text": text.text, **write_tokens(text)} for text in texts]
        return {"model": model.name, "results": results}

    return await respond(request, write, seconds, size=sum(map(len, texts)))
