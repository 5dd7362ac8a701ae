"""POST /v1/tokenize and /v1/detokenize."""

from typing import Annotated, Literal

from fastapi import APIRouter, Body, Request, Response

from service.api import examples, requests, responses
from service.api.serialize import write_tokens
from service.api.steps import TextField, find_model, read_texts, respond
from service.engine.model import Model
from service.formats.json import JSON, Document
from service.http.content import negotiate
from service.tokenizer import Tokenizer

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
    """Show how texts become tokens: with side source what the encoder reads, with side target what
    the decoder is to predict. Special tokens are included."""
    negotiate(request, [JSON])
    model, seconds = find_model(request, body.model), dict[str, float]()
    field = TextField("/text", body.text, tokenizer_of(model, body.side))
    texts = await read_texts(request, seconds, field)

    def write() -> Document:
        return {"model": model.name, "results": [write_tokens(text) for text in texts]}

    return await respond(request, write, seconds, size=sum(map(len, texts)))


@router.post(
    "/v1/detokenize",
    response_model=responses.DetokenizeAnswer,
    summary="Join tokens into texts",
    tags=["models"],
)
async def detokenize(
    body: Annotated[requests.DetokenizeRequest, Body(openapi_examples=examples.DETOKENIZE)],
    request: Request,
) -> Response:
    """Turn token ids into texts, and show where in its text each token is."""
    negotiate(request, [JSON])
    model, seconds = find_model(request, body.model), dict[str, float]()
    field = TextField("/token_ids", body.token_ids, tokenizer_of(model, body.side))
    texts = await read_texts(request, seconds, field)

    def write() -> Document:
        results = [{"text": text.text, **write_tokens(text)} for text in texts]
        return {"model": model.name, "results": results}

    return await respond(request, write, seconds, size=sum(map(len, texts)))


def tokenizer_of(model: Model, side: Literal["source", "target"]) -> Tokenizer:
    return model.source if side == "source" else model.target
