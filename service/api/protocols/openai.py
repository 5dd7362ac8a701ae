"""POST /v1/embeddings, as the OpenAI API has it (https://platform.openai.com/docs/api-reference).

An embedding is the mean of the encoder's output over the tokens of an input, scaled to length 1.
"""

import json
from itertools import islice
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Body, Response
from pydantic import BaseModel, Field, Tag

from service.api.answering.examples import SIMPLE, Examples
from service.api.answering.respond import Computed, respond
from service.api.endpoints.encode import EncodeRequest, run_encode
from service.api.reading.call import Call
from service.api.reading.field_types import (
    IdList,
    Ids,
    TaggedText,
    Texts,
    TextsOrIds,
    by_form,
    source_variant,
)
from service.api.reading.json_route import JsonRoute
from service.api.reading.requests import LanguageRequest
from service.bundle.languages import Slot
from service.errors import MOST_FAULTS, Fault, HeedError, Invalid, shorten
from service.formats.json import JSON, Document
from service.http.messages.problems import (
    LONGEST_DETAIL,
    PROBLEM,
    ErrorForm,
    encode_json,
    write_problem,
)
from service.http.middleware.answers import negotiate
from service.serving.model import Model

PATH = "/v1/embeddings"
# Other paths that its clients ask for: errors there have its form, too.
NOT_OFFERED = [
    *("/v1/assistants", "/v1/audio", "/v1/batches", "/v1/chat", "/v1/completions"),
    *("/v1/containers", "/v1/conversations", "/v1/evals", "/v1/files", "/v1/fine_tuning"),
    *("/v1/images", "/v1/moderations", "/v1/realtime", "/v1/responses", "/v1/threads"),
    *("/v1/uploads", "/v1/vector_stores", "/v1/videos"),
]
VectorFormat = Literal["float", "base64"]
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def input_variant(value: Any) -> str | None:
    """Return the tag of a list of ids, or that of a text, texts or lists of ids."""
    if isinstance(value, list) and value and isinstance(value[0], int):
        return "as one"
    return source_variant(value)


EmbeddingInput = Annotated[
    TaggedText | Texts | Ids | Annotated[IdList, Tag("as one")],
    by_form(input_variant, "a text, a list of texts, a list of token ids, or a list of such lists"),
]


class EmbeddingRequest(LanguageRequest):
    input: EmbeddingInput = Field(
        description="A text, a list of texts, a list of token ids, or a list of such lists. Ids are"
        " used unchanged, so they must hold the special tokens that the model needs."
    )
    check_special_tokens: bool = Field(
        default=True,
        description="Refuse token ids without the special tokens that the model needs around a"
        " text, such as those of another model's tokenizer.",
    )
    encoding_format: VectorFormat = Field(
        default="float",
        description="How vectors are written. float: lists of numbers; base64: the bytes of"
        " little-endian float32 numbers as base64 text.",
    )
    dimensions: int | None = Field(
        default=None,
        ge=1,
        description="How many of the first numbers of every vector to keep; they are scaled to"
        " length 1 again. null: all.",
    )
    user: str | None = Field(default=None, description="Has no effect.")


class Embedding(BaseModel):
    object: Literal["embedding"]
    index: int = Field(description="Index of the input, from 0.")
    embedding: list[float] | str = Field(description="The vector, or base64 text if requested.")


class EmbeddingUsage(BaseModel):
    prompt_tokens: int = Field(description="Tokens of all inputs.")
    total_tokens: int = Field(description="The same number: nothing is generated.")


class EmbeddingAnswer(BaseModel):
    object: Literal["list"]
    data: list[Embedding] = Field(description="One for each input, in their order.")
    model: str = Field(description="The model that answered.")
    usage: EmbeddingUsage


class OpenAIFault(BaseModel):
    message: str = Field(description="What is wrong and what to send instead, for people.")
    type: str = Field(description="The kind of error.")
    param: str | None = Field(description="The field that is wrong, if it is one.")
    code: str = Field(description="The error, for programs: one of those of our own endpoints.")


class OpenAIError(BaseModel):
    error: OpenAIFault


def write_error(error: HeedError, _path: str, _request_id: str) -> bytes:
    """Return the body of an error as an OpenAIError."""
    fields = (part for each in error.faults for part in each.pointer.split("/")[1:2])
    other = "invalid_request_error" if error.status < 500 else "server_error"
    document = OpenAIFault(
        message=shorten(error.detail, LONGEST_DETAIL),
        type=TYPES.get(error.status, other),
        param=next(fields, "model" if error.code == "unknown_model" else None),
        code=error.code,
    )
    return encode_json({"error": document.model_dump()})


def write_both(error: HeedError, path: str, request_id: str) -> bytes:
    """Return the problem document of an error with the fields of an OpenAIError: clients of both
    APIs ask for models."""
    problem = json.loads(write_problem(error, path, request_id))
    return encode_json({**problem, **json.loads(write_error(error, path, request_id))})


# 400 for requests that must be changed: the clients then raise BadRequestError.
ERRORS = ErrorForm([PATH, *NOT_OFFERED], write_error, {413: 400, 422: 400})
MODEL_ERRORS = ErrorForm(["/v1/models"], write_both, media_type=PROBLEM)

router = APIRouter(
    responses={"4XX": {"model": OpenAIError}, "5XX": {"model": OpenAIError}}, route_class=JsonRoute
)

EXAMPLES: Examples = {
    "texts": {"summary": "One vector for each word", "value": {"input": ["color", "colour"]}},
    "base64": {
        "summary": "The first 64 numbers of the vector of a word, as base64",
        "value": {"input": "color", "dimensions": 64, "encoding_format": "base64"},
    },
    SIMPLE: {"value": {"input": "Hello"}},
}


@router.post(
    PATH,
    response_model=EmbeddingAnswer,
    summary="Embed texts as the OpenAI API does",
    tags=["protocols"],
)
async def create_embeddings(
    body: Annotated[EmbeddingRequest, Body(openapi_examples=EXAMPLES)], call: Call
) -> Response:
    """Return a vector of length 1 for each input: the mean of the encoder's output over its
    tokens."""
    negotiate(call, [JSON])
    sources = sources_of(body.input)
    if body.check_special_tokens and any(isinstance(each, list) for each in sources[:1]):
        # More are refused by run_encode, whatever they hold.
        check_special_tokens(sources[: call.settings.max_sources], call.find_model(body.model))
    asked = EncodeRequest.model_construct(
        model=body.model,
        source_language=body.source_language,
        target_language=body.target_language,
        source=sources,
        pooling="mean",
        normalize=True,
        dimensions=body.dimensions,
        encoding=body.encoding_format,
    )
    encoded = await run_encode(asked, call, "/input")

    def write() -> Document:
        document = encoded.write()
        tokens = sum(len(result["tokens"]) for result in document["results"])
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": result["embedding"]}
                for index, result in enumerate(document["results"])
            ],
            "model": document["model"],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }

    return await respond(call, Computed(write, encoded.answers))


def sources_of(given: str | list[str] | list[list[int]] | list[int]) -> TextsOrIds:
    """Return inputs as the sources of /v1/encode. A list of ids is one source."""
    is_one = isinstance(given, list) and isinstance(given[0], int)
    return cast("TextsOrIds", [given] if is_one else given)


def check_special_tokens(sources: TextsOrIds, model: Model) -> None:
    """Raise Invalid for ids without those that the model needs around a text, in any language. Ids
    of another model's tokenizer would get a vector as well."""
    manifest = model.manifest
    prefix, suffix = manifest.source_prefix, manifest.source_suffix
    first, last = manifest.languages.fills(prefix), manifest.languages.fills(suffix)
    starts, ends = {len(each) for each in first}, {len(each) for each in last}
    wrong = (
        f"/input/{i}"
        for i, ids in enumerate(sources)
        if not isinstance(ids, str)
        and not (
            any(tuple(ids[:length]) in first for length in starts)
            and any(tuple(ids[len(ids) - length :]) in last for length in ends)
        )
    )
    needed = describe_templates(model)
    detail = (
        f"lacks special tokens: this model needs {needed}. Send texts (in LangChain by"
        ' check_embedding_ctx_length=False), or ids of /v1/tokenize; "check_special_tokens": false'
        " embeds ids as they are"
    )
    if faults := [Fault(pointer, detail) for pointer in islice(wrong, MOST_FAULTS)]:
        raise Invalid.of(faults)


def describe_templates(model: Model) -> str:
    """Return the special tokens around a text in words, such as "2 (</s>) at the end"."""
    manifest = model.manifest
    sides = [(manifest.source_prefix, "beginning"), (manifest.source_suffix, "end")]
    return " and ".join(
        f"{', '.join(describe_item(each, model) for each in template)} at the {place}"
        for template, place in sides
        if template
    )


def describe_item(item: int | Slot, model: Model) -> str:
    if isinstance(item, int):
        return f"{item} ({model.source.name(item)})"
    return f"the ids of a {item}"
