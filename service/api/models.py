"""What is served, and whether it answers."""

import asyncio

from fastapi import APIRouter, Request

from service.api import responses
from service.api.steps import find_model, models_of
from service.api.validation_attention import ATTENTION_GRAPHS
from service.engine.model import Model
from service.errors import Unavailable

PATIENCE = 1.0  # seconds in which an engine must say how it is
router = APIRouter(responses=responses.PROBLEMS)


def describe(model: Model) -> responses.ModelCard:
    manifest, opened = model.engine.bundle.manifest, model.engine.opened
    return responses.ModelCard(
        name=manifest.name,
        task=manifest.task,
        licence=manifest.licence,
        attribution=manifest.attribution,
        precision=opened.precision,
        provider=opened.provider,
        attention=[kind for kind, graph in ATTENTION_GRAPHS.items() if graph in opened.graphs],
        limits=manifest.limits.model_dump(),
        max_new_tokens=manifest.decoding.max_new_tokens,
        config=manifest.config.model_dump(),
    )


@router.get(
    "/v1/models",
    summary="List the models",
    tags=["service"],
)
async def list_models(request: Request) -> responses.ModelList:
    """The models served here, with their limits, licence and configuration."""
    return responses.ModelList(models=[describe(model) for model in models_of(request).values()])


@router.get(
    "/v1/models/{name}",
    summary="Describe a model",
    tags=["service"],
)
async def show_model(name: str, request: Request) -> responses.ModelCard:
    """Its limits, licence and configuration."""
    return describe(find_model(request, name))


@router.get("/livez", summary="Is the service alive?", tags=["service"])
async def live(request: Request) -> responses.Health:
    """The service answers, and no engine has died: then only a new start helps."""
    if dead := [name for name, model in models_of(request).items() if model.engine.gone]:
        raise Unavailable(f"lost their engines: {', '.join(dead)}; start the service again")
    return responses.Health(status="ok")


async def is_ready(model: Model) -> bool:
    try:
        async with asyncio.timeout(PATIENCE):
            return (await model.engine.status()).ready
    except (TimeoutError, Unavailable):
        return False


@router.get(
    "/readyz",
    summary="Do the models answer?",
    tags=["service"],
)
async def ready(request: Request) -> responses.Health:
    """Every model's worker takes requests and gets on with them."""
    if idle := [name for name, model in models_of(request).items() if not await is_ready(model)]:
        raise Unavailable(f"not ready: {', '.join(idle)}")
    return responses.Health(status="ok")
