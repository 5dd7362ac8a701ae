"""GET /v1/models, and the probes /livez and /readyz."""

import asyncio
from typing import Any, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from service.api.answering.responses import PROBLEMS, describe_files
from service.api.endpoints.decode.drafts import why_no_drafts
from service.api.reading.call import Call, Service
from service.api.reading.json_route import JsonRoute
from service.api.reading.selection import GATED_GRAPHS, kinds_of
from service.attention import AttentionKind
from service.bundle.alignment import AlignedHeads
from service.bundle.decoding import Decoding
from service.bundle.examples import Example, LanguageCode, is_absent
from service.bundle.manifest import Config, Limits
from service.errors import Unavailable
from service.formats.json import JSON, to_json
from service.http.middleware.answers import negotiate
from service.serving.model import Model
from service.settings.cpu import instruction_sets, read_cpuinfo

MARKDOWN = "text/markdown"
OPENAI = "As the OpenAI API lists the models. Absent unless HEED_PROTOCOLS names openai."
STATUS_TIMEOUT = 1.0  # seconds in which a ready engine answers
router = APIRouter(responses=PROBLEMS, route_class=JsonRoute)


class LanguageCodes(BaseModel):
    source: list[str] = Field(description="Codes for source_language.")
    target: list[str] = Field(description="Codes for target_language.")
    default_target: LanguageCode = Field(
        default=None,
        description="The target_language of requests that name none. It is absent where a request"
        " must name one, unless there is only one.",
    )
    target_lists: dict[str, int] | None = Field(
        default=None,
        description="Targets in these languages have the tokens of a list alone, which has so many."
        " Absent if all languages have all tokens.",
        exclude_if=is_absent,
    )


class ModelCard(BaseModel):
    name: str = Field(description="Name of the model, for the field `model` of requests.")
    version: str = Field(
        description="SHA-256 of its bundle.json, which holds those of its weights and all its other"
        " files: another version of the model has another."
    )
    service_version: str = Field(description="Version of the service.")
    task: str = Field(description="What the model does.")
    licence: str = Field(description="Licence of the weights.")
    attribution: str = Field(description="Whom to credit for the model and its data.")
    examples: list[Example] = Field(
        description="Sources that show what the model does, with the languages that they need: as"
        " in a request to /v1/decode."
    )
    precision: str = Field(description="Precision of the loaded weights, fp32, int8 or fp16.")
    provider: str = Field(description="ONNX Runtime execution provider that computes.")
    instructions: list[str] = Field(
        description="Instruction sets of this CPU that make int8 fast: AVX2, AVX-512, VNNI, AMX."
        " Empty on other CPUs, and outside Linux."
    )
    attention: list[AttentionKind] = Field(description="Kinds of attention that it can show.")
    ablation: bool = Field(
        description="Whether it can switch heads off, and measure attention by norms."
    )
    drafts: bool = Field(description="Whether requests to /v1/decode may send a draft.")
    limits: Limits = Field(
        description="Longest source and target in tokens, special tokens included."
    )
    max_new_tokens: int = Field(
        description="Most tokens that are generated if a request does not set max_new_tokens."
    )
    decoding: Decoding = Field(
        description="The model's own search options, which apply where a request leaves an option"
        " out or null."
    )
    languages: LanguageCodes = Field(
        description="Languages that requests can name; empty if the model has none."
    )
    alignment: AlignedHeads | None = Field(
        description="Which attention aligns targets with sources; null if none is known to."
    )
    origin: dict[str, Any] = Field(
        description="Where a converted model comes from, and what was checked; {} if it was"
        " trained with Heed. GET /v1/models leaves out its lists and objects."
    )
    config: Config = Field(description="Sizes of the network, such as num_heads.")


class ListedModel(BaseModel):
    """A model as the OpenAI API lists it."""

    id: str = Field(description="Name of the model.")
    object: Literal["model"] = "model"
    created: int = Field(default=0, description="0: bundles do not say when they were made.")
    owned_by: str = "heed"


class FailedModel(BaseModel):
    name: str = Field(description="Name of the model, or of its folder if that cannot be read.")
    reason: str = Field(description="Why its bundle could not be opened.")


class ModelList(BaseModel):
    models: list[ModelCard]
    failed: list[FailedModel] = Field(
        description="Models that could not be opened at the start, and are not served."
    )
    object: Literal["list"] | None = Field(default=None, description=OPENAI, exclude_if=is_absent)
    data: list[ListedModel] | None = Field(default=None, description=OPENAI, exclude_if=is_absent)


class Health(BaseModel):
    status: Literal["ok"]


def describe_model(call: Call, model: Model) -> ModelCard:
    manifest, opened = model.manifest, model.engine.opened
    return ModelCard(
        name=manifest.name,
        version=model.bundle.version,
        service_version=call.app.version,
        task=manifest.task,
        licence=manifest.licence,
        attribution=manifest.attribution,
        examples=manifest.examples,
        precision=opened.precision,
        provider=opened.provider,
        instructions=instruction_sets(read_cpuinfo()),
        attention=kinds_of(model),
        ablation=opened.graphs >= GATED_GRAPHS,
        drafts=not why_no_drafts(model),
        limits=manifest.limits,
        max_new_tokens=manifest.decoding.max_new_tokens,
        decoding=manifest.decoding,
        languages=LanguageCodes(
            source=list(manifest.languages.source),
            target=list(manifest.languages.target),
            default_target=manifest.languages.default_target,
            target_lists=opened.target_lists or None,
        ),
        alignment=manifest.alignment,
        origin=manifest.origin,
        config=manifest.config,
    )


def speaks_openai(call: Call) -> bool:
    return "openai" in call.settings.protocols


def shortened(card: ModelCard) -> ModelCard:
    """Return the card without lists and objects in `origin`, such as the hashes of all files."""
    brief = {k: value for k, value in card.origin.items() if not isinstance(value, dict | list)}
    return card.model_copy(update={"origin": brief})


@router.get("/v1/models", summary="List the models", tags=["service"])
async def list_models(call: Call) -> ModelList:
    """List every model with its limits, licence and configuration."""
    models = call.service.registry.served
    cards = [describe_model(call, model) for model in models.values()]
    failed = [
        FailedModel(name=name, reason=failure.reason)
        for name, failure in call.service.registry.failed.items()
    ]
    listed = ModelList(models=[shortened(card) for card in cards], failed=failed)
    if speaks_openai(call):
        data = [ListedModel(id=name) for name in models]
        return listed.model_copy(update={"object": "list", "data": data})
    return listed


@router.get(
    "/v1/models/{name}",
    response_model=ModelCard,
    responses=describe_files([MARKDOWN]),
    summary="Describe a model",
    tags=["service"],
)
async def show_model(name: str, call: Call) -> Response:
    """Return the limits, licence, examples and configuration of one model. If the Accept header
    asks for text/markdown, return its model card, a text on its data and its weak spots; 406 if its
    bundle has none."""
    model = call.find_model(name)
    card = model.bundle.card
    offered = [JSON, MARKDOWN] if card else [JSON]
    what = "the answer is" if card else f"model {name} has no MODEL_CARD.md: the answer is"
    media_type = negotiate(call, offered, what)
    if media_type == JSON:
        listed = ListedModel(id=name).model_dump() if speaks_openai(call) else {}
        card = to_json({**describe_model(call, model).model_dump(mode="json"), **listed}) + b"\n"
    return Response(card, media_type=media_type, headers={"Vary": "Accept"})


@router.get("/livez", summary="Check that the service is alive", tags=["service"])
async def live() -> Health:
    """Return 200 as long as the service answers at all. An engine that dies is replaced by another:
    meanwhile only `/readyz` fails."""
    return Health(status="ok")


async def is_ready(service: Service, model: Model) -> bool:
    """Return whether the engine reports in time that its workers make progress.

    While many requests are in progress, its latest report is enough, at most six seconds old: this
    process itself may be too late to read another.
    """
    admission = service.admission
    if admission.crowded and model.supervisor.reported.ready:
        return True
    try:
        async with asyncio.timeout(STATUS_TIMEOUT):
            return (await model.engine.status()).ready
    except (TimeoutError, Unavailable):
        return False


@router.get("/readyz", summary="Check that the models are ready", tags=["service"])
async def ready(call: Call) -> Health:
    """Return 200 if every model accepts requests and its workers make progress, else 503. A model
    that could not be opened at the start counts, until it is reloaded or unloaded."""
    await check_ready(call.service)
    return Health(status="ok")


async def check_ready(service: Service) -> None:
    """Raise Unavailable unless all models are ready."""
    models = service.registry.served
    late = [name for name, model in models.items() if not await is_ready(service, model)]
    why = [not_opened(name) for name in service.registry.failed]
    if late:
        why.append(f"these models are not ready: {', '.join(late)}; try again later")
    if why:
        raise Unavailable("; ".join(why))
    if not models:
        raise Unavailable("no model is served: try again when one is loaded")


@router.get("/readyz/{name}", summary="Check that a model is ready", tags=["service"])
async def model_ready(name: str, call: Call) -> Health:
    """Return 200 if this model accepts requests and its workers make progress, else 503."""
    registry = call.service.registry
    if name in registry.failed and name not in registry.served:
        raise Unavailable(not_opened(name))
    if not await is_ready(call.service, call.find_model(name)):
        raise Unavailable(f"model {name} is not ready; try again later")
    return Health(status="ok")


def not_opened(name: str) -> str:
    """Return what to do about a model that failed at the start. Probes, which need no key, do not
    give the reason: it names files."""
    return (
        f"model {name} could not be opened (the list of models says why): fix it, then reload it"
        " or restart the service, or unload it"
    )
