"""POST /v1/models/{name}/load, /reload and /unload, for holders of the admin key."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Body, Response
from pydantic import BaseModel, ConfigDict, Field

from service.api.answering.examples import NEW, Examples
from service.api.answering.responses import PROBLEMS
from service.api.endpoints.models import Health, ModelCard, describe_model
from service.api.reading.call import Call
from service.api.reading.json_route import JsonRoute, receive
from service.errors import Forbidden, Invalid
from service.formats.json import JSON
from service.http.middleware.answers import negotiate
from service.http.middleware.keys import ADMIN_SCHEME
from service.serving.registry import Registry
from service.settings.settings import Settings

router = APIRouter(responses=PROBLEMS, tags=["administration"], route_class=JsonRoute)
NEEDS_ADMIN: dict[str, Any] = {"security": [{ADMIN_SCHEME: []}]}


class LoadRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    path: str = Field(
        min_length=1,
        max_length=255,
        pattern=r"^[^\x00]*$",
        description="Folder of the bundle, below the folder HEED_MODELS; or one of HEED_BUNDLES.",
    )


LOAD: Examples = {"folder": {"summary": "A folder in HEED_MODELS", "value": {"path": NEW}}}


@router.post(
    "/v1/models/{name}/load",
    response_model=ModelCard,
    summary="Load a model",
    openapi_extra=NEEDS_ADMIN,
)
async def load_model(
    name: str, body: Annotated[LoadRequest, Body(openapi_examples=LOAD)], call: Call
) -> Response:
    """Open a bundle, check it, and serve its model, which must have the name in the path. The
    answer comes when it is ready. 403 without HEED_ADMIN_KEY in the settings, 409 if a model of
    this name is served already."""
    registry = administer(call)
    folder = find_folder(call.settings, body.path)
    card = describe_model(call, await registry.load(name, folder))
    return Response(card.model_dump_json(), media_type=JSON)


@router.post("/v1/models/{name}/reload", summary="Reload a model", openapi_extra=NEEDS_ADMIN)
async def reload_model(name: str, call: Call) -> ModelCard:
    """Open the folder of a model again while its engine runs: both take memory meanwhile. The
    new engine gets all later requests, and the old one finishes the earlier ones. If the bundle
    does not open, 422 says why, and nothing changes. 403 without HEED_ADMIN_KEY in the settings."""
    registry = administer(call)
    await expect_no_body(call)
    return describe_model(call, await registry.reload(name))


@router.post("/v1/models/{name}/unload", summary="Unload a model", openapi_extra=NEEDS_ADMIN)
async def unload_model(name: str, call: Call) -> Health:
    """Stop serving a model, and free its memory when its requests are finished. The answer comes
    after that. 403 without HEED_ADMIN_KEY in the settings."""
    registry = administer(call)
    await expect_no_body(call)
    await registry.unload(name)
    return Health(status="ok")


def administer(call: Call) -> Registry:
    """Return the registry. Raise NotAcceptable if the client excludes JSON, Forbidden if no admin
    key is set, Unauthorized if the request does not hold it."""
    negotiate(call, [JSON])
    admin = call.service.admin
    if admin is None:
        raise Forbidden(
            "models cannot be changed at run time: start the service with HEED_ADMIN_KEY"
        )
    admin.check(call.headers.get("authorization"))
    return call.service.registry


async def expect_no_body(call: Call) -> None:
    """Raise Invalid if there is a body: its sender expects an effect that it does not have."""
    if await receive(call):
        raise Invalid.at("", "must be absent: no body is expected, so send none")


def find_folder(settings: Settings, path: str) -> Path:
    """Return the folder of a path. Raise Invalid unless it leads into HEED_MODELS, links resolved,
    or to one of HEED_BUNDLES: a client must not read other folders of the machine."""
    with suppress(RuntimeError):  # links that lead in a circle
        bundles = [bundle.resolve() for bundle in settings.bundles]
        folder, given = ((settings.models or Path()) / path).resolve(), Path(path).resolve()
        if given in bundles and not folder.exists():
            return given
        inside = settings.models is not None and folder.is_relative_to(settings.models.resolve())
        if inside or folder in bundles:
            return folder
    where = "the folder HEED_MODELS, or" if settings.models else "HEED_MODELS, which is not set, or"
    raise Invalid.at("/path", f"must be a folder in {where} one of HEED_BUNDLES")
