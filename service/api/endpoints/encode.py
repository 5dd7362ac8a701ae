"""POST /v1/encode."""

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Body, Response
from pydantic import BaseModel, Field

from service.api.answering.examples import SIMPLE, Examples
from service.api.answering.respond import Computed, respond, write_partial
from service.api.answering.responses import PROBLEMS, FailedResult, ModelResponse
from service.api.reading.answer_size import SEND_LESS, check_answer_size, held_nbytes, total_length
from service.api.reading.call import Call
from service.api.reading.faults import Faults
from service.api.reading.field_types import Partial, SourceField
from service.api.reading.json_route import JsonRoute
from service.api.reading.requests import LanguageRequest
from service.api.reading.texts import TextField, count_texts, read_languages, tokenize_texts
from service.arrays import FloatArray
from service.errors import Invalid
from service.formats.json import JSON, Document
from service.http.middleware.answers import negotiate
from service.text.tokens import Tokens
from service.wire import Answer, Entry, Pooling

router = APIRouter(responses=PROBLEMS, route_class=JsonRoute)

EXAMPLES: Examples = {
    "hidden": {"summary": "One vector for every letter", "value": {"source": "heed"}},
    "embedding": {
        "summary": "One vector of length 1 for each word, for comparisons",
        "value": {"source": ["color", "colour"], "pooling": "mean", "normalize": True},
    },
    "base64": {
        "summary": "The first 64 numbers of the vector of a word, as base64",
        "value": {"source": "color", "pooling": "mean", "dimensions": 64, "encoding": "base64"},
    },
    SIMPLE: {"value": {"source": "Hello", "pooling": "mean"}},
}


class EncodeRequest(LanguageRequest):
    source: SourceField
    pooling: Pooling = Field(
        default="none",
        description="How to combine the vectors of the tokens. none: return one vector per token;"
        " mean, max, first or last: one vector per source.",
    )
    normalize: bool = Field(
        default=False,
        description="Scale every vector to length 1, after it was cut to `dimensions`.",
    )
    dimensions: int | None = Field(
        default=None,
        ge=1,
        description="How many of the first numbers of every vector to keep. null: all.",
    )
    encoding: Literal["float", "base64"] = Field(
        default="float",
        description="How vectors are written. float: lists of numbers; base64: the bytes of"
        " little-endian float32 numbers, row after row, as base64 text.",
    )
    partial: Partial = False


class EncodeResult(BaseModel):
    hidden: list[list[float]] | str | None = Field(
        default=None,
        description="With pooling none: one vector per token, or base64 text if requested.",
    )
    embedding: list[float] | str | None = Field(
        default=None,
        description="With any other pooling: one vector, or base64 text if requested.",
    )
    shape: list[int] = Field(description="Shape of `hidden` or `embedding`.")
    tokens: list[str] = Field(description="The tokens that were encoded.")


class EncodeAnswer(ModelResponse):
    results: list[EncodeResult | FailedResult] = Field(
        description="One for each source, in their order."
    )


@router.post(
    "/v1/encode", response_model=EncodeAnswer, summary="Encode sources as vectors", tags=["models"]
)
async def encode(
    body: Annotated[EncodeRequest, Body(openapi_examples=EXAMPLES)], call: Call
) -> Response:
    """Return the output of the encoder for every source: one vector per token or, with pooling, one
    vector per source."""
    negotiate(call, [JSON])
    return await respond(call, await run_encode(body, call))


async def run_encode(
    body: EncodeRequest, call: Call, pointer: str = "/source", *, padded: bool = False
) -> Computed:
    """Encode the sources, which the body has at `pointer`. `padded`: every source will be written
    with as many vectors as the longest.

    Raise the errors of the endpoint.
    """
    model = call.use_model(body.model)
    d_model = model.manifest.config.d_model
    faults = Faults(body.partial)
    if body.dimensions is not None and body.dimensions > d_model:
        detail = f"is {body.dimensions} but vectors of this model have {d_model} numbers"
        faults.add(Invalid.at("/dimensions", f"{detail}: give 1 to {d_model}"))
    languages = read_languages(body, model, body.source, faults, decodes=False)
    sources = await tokenize_texts(call, TextField(pointer, body.source, languages.source), faults)
    faults.raise_all(count_texts(body.source))
    results = faults.valid(count_texts(body.source))
    vectors = total_length(sources, padded) if body.pooling == "none" else len(sources)
    advice = f"{SEND_LESS}, or set pooling to mean, max, first or last"
    nbytes = 4 * d_model * vectors
    check_answer_size(call.settings.max_answer_bytes, nbytes, advice)
    await call.hold(held_nbytes(nbytes))
    entries = [Entry(np.array(source.ids), pooling=body.pooling) for source in sources]
    answers = await call.submit_and_wait(model, entries, faults, results)

    def write() -> Document:
        asked = zip(sources, answers, strict=True)
        return write_partial(call, faults, results, asked, write_valid)

    def write_valid(answered: Sequence[tuple[Tokens, Answer]]) -> Document:
        vectors = [write_vectors(body, *each) for each in answered]
        return {"model": model.name, "results": vectors}

    return Computed(write, answers, faults.size)


def write_vectors(body: EncodeRequest, source: Tokens, answer: Answer) -> dict[str, Any]:
    assert answer.memory is not None
    vectors = answer.memory[..., : body.dimensions]
    if body.normalize:
        vectors = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    vectors = np.ascontiguousarray(vectors)
    return {
        "hidden" if body.pooling == "none" else "embedding": (
            to_base64(vectors) if body.encoding == "base64" else vectors
        ),
        "shape": list(vectors.shape),
        "tokens": [token.text for token in source.tokens],
    }


def to_base64(vectors: FloatArray) -> str:
    return base64.b64encode(vectors.astype("<f4").tobytes()).decode()
