"""What is served, and whether it answers."""

import asyncio

from fastapi import APIRouter, Request

from service import schemas
from service.errors import Unavailable
from service.exchange import model_of, models_of
from service.served import Model

PATIENCE = 1.0  # seconds in which an engine must say how it is
router = APIRouter(responses=schemas.PROBLEMS)


@router.get(
    "/v1/models",
    summary="List the models",
    tags=["service"],
)
async def list_models(request: Request) -> schemas.ModelList:
    """The models served here, with their limits, licence and configuration."""
    return schemas.ModelList(models=[model.card() for model in models_of(request).values()])


@router.get(
    "/v1/models/{name}",
    summary="Describe a model",
    tags=["service"],
)
async def show_model(name: str, request: Request) -> schemas.ModelCard:
    """Its limits, licence and configuration."""
    return model_of(request, name).card()


@router.get("/livez", summary="Is the service alive?", tags=["service"])
async def live(request: Request) -> schemas.Health:
    """The service answers, and no engine has died: then only a new start helps."""
    if dead := [name for name, model in models_of(request).items() if model.engine.gone]:
        raise Unavailable(f"lost their engines: {', '.join(dead)}; start the service again")
    return schemas.Health(status="ok")


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
async def ready(request: Request) -> schemas.Health:
    """Every model's worker takes requests and gets on with them."""
    if idle := [name for name, model in models_of(request).items() if not await is_ready(model)]:
        raise Unavailable(f"not ready: {', '.join(idle)}")
    return schemas.Health(status="ok")
