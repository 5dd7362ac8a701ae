"""POST /v1/tokenize and /v1/detokenize."""

from typing import Annotated, Literal

from fastapi import APIRouter, Body, Response
from pydantic import BaseModel, Field

from service.api.answering.examples import SIMPLE, Examples
from service.api.answering.respond import Computed, respond
from service.api.answering.responses import PROBLEMS, ModelResponse
from service.api.answering.serialize import write_tokens
from service.api.reading.answer_size import TOKEN_BYTES
from service.api.reading.call import Call
from service.api.reading.faults import Faults
from service.api.reading.field_types import IdLists, Plain
from service.api.reading.json_route import JsonRoute
from service.api.reading.languages import refuse_languages
from service.api.reading.requests import LanguageRequest, ModelRequest
from service.api.reading.texts import TextField, read_languages, tokenize_texts
from service.formats.json import JSON, Document
from service.http.middleware.answers import negotiate

router = APIRouter(responses=PROBLEMS, route_class=JsonRoute)

EXAMPLES: Examples = {
    "source": {"summary": "Split a word into letters", "value": {"text": "Don\u2019t"}},
    "target": {
        "summary": "Split a pronunciation into sounds",
        "value": {"text": "D OW1 N T", "side": "target"},
    },
    SIMPLE: {"value": {"text": "Hello"}},
}
IDS_EXAMPLES: Examples = {
    "target": {
        "summary": "Turn ids into a pronunciation",
        "value": {"token_ids": [[28, 26, 11, 2]]},
    },
    SIMPLE: {"value": {"token_ids": [[0]]}},
}


class TokenizeRequest(LanguageRequest):
    text: Annotated[
        Plain, Field(description="A text or a list of texts to tokenize.", examples=["don't"])
    ]
    side: Literal["source", "target"] = Field(
        default="source",
        description="Whose tokenizer to use: the sources' or the targets', which adds an"
        " end-of-sequence token.",
    )


class DetokenizeRequest(ModelRequest):
    token_ids: IdLists = Field(
        description="Lists of token ids, one for each text.",
        examples=[[[28, 26, 11, 2]]],
    )
    side: Literal["source", "target"] = Field(
        default="target", description="Whose tokenizer to use: the sources' or the targets'."
    )


class TokenizeResult(BaseModel):
    tokens: list[str] = Field(description="The tokens as written in the vocabulary.")
    token_ids: list[int] = Field(description="Their ids in the vocabulary.")
    offsets: list[list[int] | None] = Field(
        description="[start, end) of each token in the text, in characters; null for special"
        " tokens."
    )


class TokenizeAnswer(ModelResponse):
    results: list[TokenizeResult] = Field(description="One for each text, in their order.")


class DetokenizeResult(TokenizeResult):
    text: str = Field(description="The text of the tokens, without special tokens.")


class DetokenizeAnswer(ModelResponse):
    results: list[DetokenizeResult] = Field(description="One for each list of ids, in their order.")


@router.post(
    "/v1/tokenize",
    response_model=TokenizeAnswer,
    summary="Split texts into tokens",
    tags=["models"],
)
async def tokenize(
    body: Annotated[TokenizeRequest, Body(openapi_examples=EXAMPLES)], call: Call
) -> Response:
    """Show how texts become tokens: with side source the tokens that the encoder reads, with side
    target those that the decoder should predict. Special tokens are included."""
    negotiate(call, [JSON])
    model = call.use_model(body.model)
    faults = Faults()
    if body.side == "source":
        tokenizer = read_languages(body, model, body.text, faults, decodes=False).source
    else:
        refuse_languages(body, "on the tokens of targets, which hold no language", faults)
        tokenizer = model.target
    field = TextField("/text", body.text, tokenizer, placed=True)
    texts = await tokenize_texts(call, field, faults)
    faults.raise_all()
    await call.hold(TOKEN_BYTES * sum(map(len, texts)))

    def write() -> Document:
        return {"model": model.name, "results": [write_tokens(text) for text in texts]}

    return await respond(call, Computed(write, size=sum(map(len, texts))))


@router.post(
    "/v1/detokenize",
    response_model=DetokenizeAnswer,
    summary="Join tokens into texts",
    tags=["models"],
)
async def detokenize(
    body: Annotated[DetokenizeRequest, Body(openapi_examples=IDS_EXAMPLES)], call: Call
) -> Response:
    """Turn token ids into texts, and show where in its text each token is."""
    negotiate(call, [JSON])
    model = call.use_model(body.model)
    tokenizer = model.source if body.side == "source" else model.target
    faults = Faults()
    texts = await tokenize_texts(call, TextField("/token_ids", body.token_ids, tokenizer), faults)
    faults.raise_all()
    await call.hold(TOKEN_BYTES * sum(map(len, texts)))

    def write() -> Document:
        results = [{"text": text.text, **write_tokens(text)} for text in texts]
        return {"model": model.name, "results": results}

    return await respond(call, Computed(write, size=sum(map(len, texts))))
