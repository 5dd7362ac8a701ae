"""The API of Hugging Face's pipelines, as its Inference API, its Inference Endpoints and
text-generation-inference offer it: https://huggingface.co/docs/inference-providers.

`parameters` says how those of generate become our options.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Body, Response
from pydantic import BaseModel, Field, model_validator
from pydantic_core import PydanticCustomError

from service.api.answering.examples import Examples
from service.api.answering.respond import Computed, respond
from service.api.answering.stream import EVENT_STREAM, Stream
from service.api.endpoints.decode.body import DecodeRequest
from service.api.endpoints.decode.endpoint import prepare, run_decode
from service.api.endpoints.encode import EncodeRequest, run_encode
from service.api.protocols.hugging_face.parameters import (
    BESIDE,
    OUR_WORDS,
    THEIRS,
    Parameters,
    check_places,
    read_parameters,
    without_nulls,
)
from service.api.protocols.hugging_face.tokens import TokenWriter, write_details
from service.api.reading.call import Call
from service.api.reading.field_types import Plain, Strict
from service.api.reading.json_route import JsonRoute
from service.api.reading.texts import texts_of
from service.api.reading.validation_errors import validate
from service.bundle.languages import Template
from service.bundle.manifest import Manifest
from service.errors import Fault, HeedError, Invalid, NotFound, TooLarge, shorten
from service.formats.json import JSON, Document, Pieces, concatenate, write
from service.http.messages.problems import LONGEST_DETAIL, ErrorForm, encode_json
from service.http.middleware.answers import negotiate
from service.serving.model import Model

Key = Literal["translation_text", "summary_text", "generated_text"]
KEYS: dict[str, Key] = {  # of the texts in an answer, by task
    "translation": "translation_text",
    "summarization": "summary_text",
    "text2text-generation": "generated_text",
    "text-generation": "generated_text",
}
FEATURES = "feature-extraction"
# As text-generation-inference has them: its clients raise an exception for each.
ERROR_TYPES = {
    400: "validation",
    413: "validation",
    422: "validation",
    429: "overloaded",
    500: "generation",
}
OPTIONS = Field(
    default={}, description="Has no effect: no answer is cached, and all models are loaded."
)
MODEL = Field(
    default=None, description="Has no effect: the path names the model. Some clients send both."
)
EXAMPLES: Examples = {
    "text": {"summary": "A text", "value": {"inputs": "attention"}},
    "beams": {
        "summary": "The best two targets of four beams, for each of two texts",
        "value": {
            "inputs": ["read", "attention"],
            "parameters": {"num_beams": 4, "num_return_sequences": 2},
        },
    },
    "stream": {
        "summary": "Stream each token as soon as it is generated",
        "value": {"inputs": "pronunciation", "stream": True},
    },
}
FEATURE_EXAMPLES: Examples = {
    "texts": {"summary": "One vector for each word", "value": {"inputs": ["color", "colour"]}},
}


class GenerateRequest(Strict):
    inputs: Plain = Field(description="A text, or a list of texts.")
    parameters: dict[str, Any] = Field(
        default={},
        description="Options by the names of Hugging Face's generate, such as max_new_tokens,"
        " num_beams, do_sample, temperature and num_return_sequences; src_lang and tgt_lang.",
    )
    options: dict[str, Any] = OPTIONS
    stream: bool = Field(
        default=False,
        description="Send the tokens of one text as server-sent events, as"
        " text-generation-inference does.",
    )
    model: str | None = MODEL

    @model_validator(mode="before")
    @classmethod
    def refuse_misplaced(cls, value: Any) -> Any:
        """Raise for parameters that do not stand in `parameters`, where they have an effect."""
        if isinstance(value, dict):
            check_places(cast("dict[str, Any]", value), [*cls.model_fields])
        return value


class GeneratedToken(BaseModel):
    id: int
    text: str = Field(description="What it adds to the text.")
    logprob: float | None = Field(description="null in a stream of beam search.")
    special: bool = Field(description="Whether it is not text, such as the end of a sequence.")


class Details(BaseModel):
    finish_reason: Literal["eos_token", "length", "stop_sequence"]
    generated_tokens: int
    seed: int | None = Field(description="As in the request.")
    prefill: list[GeneratedToken] = Field(description="Empty.")
    tokens: list[GeneratedToken]


class Generated(BaseModel):
    """One of the three texts, by the task of the path, or else of the model."""

    translation_text: str | None = None
    summary_text: str | None = None
    generated_text: str | None = None
    details: Details | None = Field(default=None, description="Absent unless requested.")


class FeatureRequest(Strict):
    inputs: Plain = Field(description="A text, or a list of texts.")
    normalize: bool = Field(default=True, description="Scale every vector to length 1.")
    dimensions: int | None = Field(
        default=None, ge=1, description="How many of the first numbers of every vector to keep."
    )
    truncate: bool = Field(default=False, description="Cut texts that are too long.")
    truncation_direction: Literal["right", "Right"] = Field(
        default="right", description="At which end `truncate` cuts."
    )
    encoding_format: Literal["float"] = Field(
        default="float", description="Vectors are lists of numbers."
    )
    src_lang: str | None = Field(
        default=None,
        max_length=64,
        description="Code of the texts' language. Required only if the model must know it and has"
        " several.",
    )
    tgt_lang: str | None = Field(
        default=None,
        max_length=64,
        description="Code of a language to translate into. Required only if the encoder of the"
        " model must know it and it has several.",
    )
    parameters: dict[str, Any] = Field(
        default={}, description="More of these fields: older clients send them here."
    )
    options: dict[str, Any] = OPTIONS
    model: str | None = MODEL

    @model_validator(mode="before")
    @classmethod
    def read_nested(cls, value: Any) -> Any:
        """Return the fields with those in `parameters` beside them. Raise for one that is in both,
        and for one that does not belong there."""
        if not isinstance(value, dict):
            return value
        given = cast("dict[str, Any]", value)
        nested = given.get("parameters")
        if not isinstance(nested, dict):
            return given
        options = without_nulls(cast("dict[str, Any]", nested))
        if outside := [name for name in (*BESIDE, "parameters") if name in options]:
            message = "has {name} in parameters: put it beside them"
            raise PydanticCustomError("misplaced", message, {"name": outside[0]})
        beside = without_nulls(given)
        if both := [name for name in options if name in beside]:
            message = "has {name} in parameters and beside them: send it once"
            raise PydanticCustomError("twice", message, {"name": shorten(both[0])})
        return {**beside, **options, "parameters": None}


class HuggingFaceError(BaseModel):
    error: str = Field(description="What is wrong and what to send instead.")
    error_type: str | None = Field(
        default=None, description="validation, overloaded or generation; absent for other errors."
    )


def write_error(error: HeedError, _path: str, _request_id: str) -> bytes:
    """Return the body of an error as a HuggingFaceError."""
    detail = "; ".join(fault.sentence for fault in error.faults) or error.detail
    document = {"error": shorten(detail, LONGEST_DETAIL)}
    if kind := ERROR_TYPES.get(error.status):
        document["error_type"] = kind
    return encode_json(document)


# 400 for requests that must be changed: the clients then raise BadRequestError.
ERRORS = ErrorForm(["/", "/models", "/pipeline"], write_error, {413: 400, 422: 400})
router = APIRouter(
    responses={"4XX": {"model": HuggingFaceError}, "5XX": {"model": HuggingFaceError}},
    route_class=JsonRoute,
    tags=["protocols"],
)
FeatureBody = Annotated[FeatureRequest, Body(openapi_examples=FEATURE_EXAMPLES)]
GenerateBody = Annotated[GenerateRequest, Body(openapi_examples=EXAMPLES)]


embeds = partial(
    router.post, response_model=list[list[float]], summary="Embed texts as Hugging Face does"
)
# OpenAPI 3.1 has no schema of a stream: validators apply this one to each event
EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
generates = partial(
    router.post,
    response_model=list[Generated] | list[list[Generated]],
    responses={200: {"content": {EVENT_STREAM: {"schema": EVENT}}}},
    summary="Generate texts as Hugging Face does",
)


@embeds(f"/pipeline/{FEATURES}/{{model:path}}", name="extract_features")
@embeds(f"/models/{{model:path}}/pipeline/{FEATURES}", name="extract_features_of_model")
async def extract_features(body: FeatureBody, call: Call, model: str) -> Response:
    """Return a vector for each text: the mean of the encoder's output over its tokens."""
    negotiate(call, [JSON])
    found, texts = call.find_model(without_owner(model)), texts_of(body.inputs)
    if body.truncate:
        texts = await call.compute_reading(partial(cut_long, found, texts), sum(map(len, texts)))
    asked = EncodeRequest.model_construct(
        model=found.name,
        source=texts,
        source_language=body.src_lang,
        target_language=body.tgt_lang,
        pooling="mean",
        normalize=body.normalize,
        dimensions=body.dimensions,
    )
    try:
        encoded = await run_encode(asked, call, "/inputs")
    except (Invalid, TooLarge) as error:
        rename = partial(rename_feature, single=isinstance(body.inputs, str))
        raise error.change_faults(rename) from None
    return await answer(call, encoded, lambda each: [one["embedding"] for one in each["results"]])


@generates("/pipeline/{task}/{model:path}", name="run_pipeline")
@generates("/models/{model:path}/pipeline/{task}", name="run_pipeline_of_model")
async def run_pipeline(body: GenerateBody, call: Call, model: str, task: str) -> Response:
    """Generate a target for each text: a translation, a summary or another text, by the task."""
    if task not in KEYS:
        known = ", ".join([*KEYS, FEATURES])
        detail = f"task {shorten(task)!r} is not offered: the tasks are {known}"
        raise NotFound("unknown_task", detail)
    return await generate(body, call, call.find_model(without_owner(model)), task)


@generates("/models/{model:path}")
async def run_model(body: GenerateBody, call: Call, model: str) -> Response:
    """Generate a target for each text: a translation, a summary or another text, by the model."""
    found = call.find_model(without_owner(model))
    return await generate(body, call, found, task_of(found.manifest))


@generates("/")
async def run_only_model(body: GenerateBody, call: Call) -> Response:
    """Generate a target for each text, as `/models/{model}` does."""
    served = call.service.registry.served
    if len(served) > 1:
        raise Invalid(f"several models are served: POST to /models/ and one of {', '.join(served)}")
    found = call.find_model(None)
    return await generate(body, call, found, task_of(found.manifest))


async def generate(body: GenerateRequest, call: Call, found: Model, task: str) -> Response:
    """Answer a request with the texts of a task. Raise the errors of /v1/decode in the names of its
    client.

    With several targets for each of a list of texts, each text has a list.
    """
    negotiate(call, [EVENT_STREAM, JSON] if body.stream else [JSON])
    key = KEYS[task]
    read = partial(make_decode_request, body, found)
    asked, parameters = await call.compute_reading(read, len(await call.body()))
    try:
        if body.stream:
            open_writer = partial(TokenWriter, form=ERRORS, seed=parameters.seed)
            return await Stream(call, *await prepare(asked, call), open_writer).respond()
        decoded = await run_decode(asked, call)
    except (Invalid, TooLarge) as error:
        raise error.change_faults(parameters.rename) from None

    def shape(document: Document) -> list[Any]:
        results = document["results"]
        texts = [write_result(found, result, key, parameters) for result in results]
        if isinstance(body.inputs, str):
            return texts[0]
        return [each[0] for each in texts] if asked.num_hypotheses == 1 else texts

    return await answer(call, decoded, shape)


def without_owner(name: str) -> str:
    """Return the name of a model here. On Hugging Face its owner stands before it."""
    return name.rpartition("/")[2]


def task_of(manifest: Manifest) -> str:
    """Return the task that a bundle is made for, by what it says of it, and by its languages."""
    described = manifest.task.lower()
    if "summar" in described:
        return "summarization"
    translates = "translat" in described or manifest.languages.target
    return "translation" if translates else "text2text-generation"


def make_decode_request(body: GenerateRequest, model: Model) -> tuple[DecodeRequest, Parameters]:
    """Return the body of /v1/decode, and the parameters in it. Raise Invalid, also for a stream of
    several targets."""
    parameters = read_parameters(body.parameters, model.manifest)
    single, texts = isinstance(body.inputs, str), texts_of(body.inputs)
    if parameters.cuts:
        texts = cut_long(model, texts)
    asked = {
        "model": model.name,
        "source": texts[0] if single else texts,
        "stream": body.stream,
        **parameters.options,
    }
    try:
        request = validate(DecodeRequest, asked)
    except Invalid as error:
        raise error.change_faults(parameters.rename) from None
    if body.stream and (not single or request.num_hypotheses > 1):
        raise Invalid("a stream has one text and one target: send one of each, or no stream")
    return request, parameters


def cut_long(model: Model, texts: list[str]) -> list[str]:
    """Return the beginnings of texts that the model has room for, whatever their language."""
    manifest = model.manifest
    around: Template = [*manifest.source_prefix, *manifest.source_suffix]
    room = manifest.limits.max_source_length - manifest.languages.most_ids(around)
    return [model.source.cut(each, room) for each in texts]


def write_result(
    model: Model, result: Document, key: Key, parameters: Parameters
) -> list[Document]:
    """Return the texts of one source, best first."""
    texts = [{key: each["text"]} for each in result["hypotheses"]]
    if not parameters.details:
        return texts
    details = (write_details(model, each, parameters.seed) for each in result["hypotheses"])
    return [{**text, "details": each} for text, each in zip(texts, details, strict=True)]


def rename_feature(fault: Fault, single: bool) -> Fault:
    """Return a fault of /v1/encode in the names of the client. A `single` text was in no list."""
    field = fault.pointer.removeprefix("/")
    pointer = f"/{THEIRS[field]}" if field in THEIRS else fault.pointer
    if single:
        pointer = pointer.replace("/inputs/0", "/inputs")
    return Fault(pointer, OUR_WORDS.sub(lambda found: THEIRS[found[1]], fault.detail))


async def answer(
    call: Call, computed: Computed, shape: Callable[[Document], Sequence[Any]]
) -> Response:
    """Send the list that `shape` makes of the document of our own endpoint."""

    def write_list(document: Document) -> Pieces:
        return concatenate(chain(write(shape(document)), [b"\n"]))

    return await respond(call, computed, to_pieces=write_list)
