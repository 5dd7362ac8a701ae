"""GET /v1/models, and the probes /livez and /readyz."""

import asyncio

from fastapi import APIRouter, Request

from service.api import responses
from service.api.steps import find_model, models_of
from service.api.validation_attention import ATTENTION_GRAPHS
from service.engine.model import Model
from service.errors import Unavailable

STATUS_TIMEOUT = 1.0  # seconds in which a ready engine answers
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
    """List every model with its limits, licence and configuration."""
    return responses.ModelList(models=[describe(model) for model in models_of(request).values()])


@router.get(
    "/v1/models/{name}",
    summary="Describe a model",
    tags=["service"],
)
async def show_model(name: str, request: Request) -> responses.ModelCard:
    """Return the limits, licence and configuration of one model."""
    return describe(find_model(request, name))


@router.get("/livez", summary="Check that the service is alive", tags=["service"])
async def live(request: Request) -> responses.Health:
    """Return 200 while every engine runs, else 503: the service must then be restarted."""
    if dead := [name for name, model in models_of(request).items() if model.engine.gone]:
        raise Unavailable(f"the engines of {', '.join(dead)} have died: restart the service")
    return responses.Health(status="ok")


async def is_ready(model: Model) -> bool:
    """Return whether the engine reports in time that its workers make progress."""
    try:
        async with asyncio.timeout(STATUS_TIMEOUT):
            return (await model.engine.status()).ready
    except (TimeoutError, Unavailable):
        return False


@router.get(
    "/readyz",
    summary="Check that the models are ready",
    tags=["service"],
)
async def ready(request: Request) -> responses.Health:
    """Return 200 if every model accepts requests and its workers make progress, else 503."""
    if late := [name for name, model in models_of(request).items() if not await is_ready(model)]:
        raise Unavailable(f"these models are not ready: {', '.join(late)}; try again later")
    return responses.Health(status="ok")
