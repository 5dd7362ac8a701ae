"""Middleware that opens a model of HEED_MODELS when a request names it for Ray's multiplexing."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from fastapi import FastAPI
from ray import serve
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.reading.call import Service
from service.errors import Invalid, Unauthorized, Unavailable
from service.serving.model import Model
from service.serving.registry import Registry


class Loaded:
    """A model that Ray unloads by awaiting `__del__`. That is an attribute, because Python's
    garbage collector would call a method of that name, too."""

    def __init__(self, model: Model, unload: Callable[[], Awaitable[None]]) -> None:
        self.model = model
        self.__del__ = unload


class Multiplexing:
    """Before a POST request with the header serve_multiplexed_model_id, opens the folder of that
    name, unless it is open. Names of no folder, and models of HEED_BUNDLES, change nothing.

    Ray prefers replicas that have the model. Each has `most` of them, and unloads the one that was
    not used for longest. Where there are keys, a model is opened only with one in the header
    Authorization: endpoints that find it in the body check it later.
    """

    def __init__(self, app: ASGIApp, heed: FastAPI, most: int) -> None:
        async def load(name: str) -> Loaded:  # Ray keeps its models in an attribute of a function
            return await self._open(name)

        self.app = app
        self._service: Service = heed.state.service
        self._load = serve.multiplexed(max_num_models_per_replica=most)(load)
        self._unloading = set[asyncio.Task[None]]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = serve.get_multiplexed_model_id()
        if scope["type"] != "http" or scope["method"] != "POST" or not self._can_load(name):
            return await self.app(scope, receive, send)
        keys = self._service.keys
        try:
            if keys:
                keys.check(Headers(scope=scope).get("authorization"))
            loaded: Loaded = await self._load(name)
        except Unauthorized:
            return await self.app(scope, receive, send)
        loaded.model.use()
        try:
            await self.app(scope, receive, send)
        finally:
            loaded.model.release()

    def _can_load(self, name: str) -> bool:
        """Return whether this is a folder in HEED_MODELS, and not a model of HEED_BUNDLES."""
        if not name:
            return False
        registry, settings = self._service.registry, self._service.settings
        if model := registry.served.get(name):
            return model.bundle.root not in settings.bundles
        folders = settings.models.iterdir() if settings.models else ()
        return name in [folder.name for folder in folders]

    async def _open(self, name: str) -> Loaded:
        """Open a folder. Raise Unavailable if that fails."""
        if self._unloading:
            await asyncio.wait(self._unloading)
        registry, models = self._service.registry, self._service.settings.models
        assert models is not None  # _can_load has found the folder in it
        try:
            model = await registry.load(name, models / name)
        except Invalid as error:  # its detail, which is logged, may have paths of the server
            detail = f"model {name} could not be opened: the log says why"
            raise Unavailable(detail) from error
        return Loaded(model, partial(self._unload, registry, model))

    async def _unload(self, registry: Registry, model: Model) -> None:
        """Unload a model once no request uses it, even if the request that needs its place ends."""

        async def unload() -> None:
            await model.unused.wait()
            await registry.unload(model.name)

        task = asyncio.create_task(unload())
        self._unloading.add(task)
        task.add_done_callback(self._unloading.discard)
        await asyncio.shield(task)
