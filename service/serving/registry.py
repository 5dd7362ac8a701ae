"""The models that are served: opened at the start; loaded, reloaded and unloaded at run time."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from service.bundle.manifest import Bundle, load_bundle
from service.errors import Conflict, Invalid, NotFound, StartupError
from service.logs import log_error
from service.serving.model import Model
from service.serving.supervisor import Supervisor
from service.settings.settings import Settings
from service.text.opening import open_tokenizers

logger = structlog.get_logger()
OpenEngine = Callable[[Bundle, Settings], Supervisor]


@dataclass(frozen=True, slots=True)
class Failure:
    """A bundle that could not be opened at the start."""

    folder: Path
    reason: str


class Registry:
    """The models by their names. One operation at a time changes a model; others get Conflict."""

    def __init__(
        self, settings: Settings, open_engine: OpenEngine, on_change: Callable[[], None]
    ) -> None:
        """`on_change` is called after every change of `served`."""
        self.served: dict[str, Model] = {}
        self.failed: dict[str, Failure] = {}  # by the name of the model, else of the folder
        self._settings = settings
        self._open_engine = open_engine
        self._on_change = on_change
        self._changing = set[str]()
        self._retiring = set[Model]()

    async def open(self) -> None:
        """Open the bundles of the settings. One that fails is logged and kept in `failed`.

        Raise StartupError if none opens or two hold models of the same name.
        """
        for name, bundle in (await asyncio.to_thread(self._load_bundles)).items():
            try:
                self.served[name] = await self._start(bundle)
            except StartupError as error:
                self.failed[name] = Failure(bundle.root, str(error))
        if not self.served:
            raise StartupError("; ".join(failure.reason for failure in self.failed.values()))
        for name, failure in self.failed.items():
            log_error("model not opened", model=name, reason=failure.reason)
        self._on_change()

    def _load_bundles(self) -> dict[str, Bundle]:
        bundles: dict[str, Bundle] = {}
        for folder in self._settings.bundles:
            try:
                bundle = load_bundle(folder)
            except StartupError as error:
                name = str(folder) if folder.name in self.failed else folder.name
                self.failed[name] = Failure(folder, str(error))
                continue
            name = bundle.manifest.name
            if name in bundles:
                raise StartupError(
                    f"{bundles[name].root} and {folder} both hold a model named {name}: serve one,"
                    ' or change "name" in one bundle.json'
                )
            bundles[name] = bundle
        return bundles

    async def _start(self, bundle: Bundle) -> Model:
        """Return a model whose engine runs. Raise StartupError."""
        supervisor = self._open_engine(bundle, self._settings)
        try:
            await supervisor.start()
            # The engine opens the tokenizers first: a bad one may end the process that opens it.
            tokenizers = await asyncio.to_thread(open_tokenizers, bundle)
        except BaseException:  # also if the service ends meanwhile: nothing else ends the process
            await supervisor.close()
            raise
        opened = supervisor.engine.opened
        logger.info(
            "model opened",
            model=bundle.manifest.name,
            folder=str(bundle.root),
            precision=opened.precision,
            provider=opened.provider,
            workers=opened.workers,
        )
        return Model(supervisor, *tokenizers)

    async def close(self) -> None:
        """Close all engines once they have finished accepted entries."""
        models = [*self.served.values(), *self._retiring]
        await asyncio.gather(*(model.supervisor.close() for model in models))

    async def load(self, name: str, folder: Path) -> Model:
        """Serve the model of a bundle. Raise Conflict if it is served, Invalid if it fails."""
        with self._changes(name):
            if name in self.served:
                raise Conflict(f"model {name} is served already: reload it, or unload it first")
            return await self._serve(name, folder)

    async def reload(self, name: str) -> Model:
        """Open the folder of a model again, and serve what it holds now; return when the engine
        before has finished its requests. Raise Invalid if it fails: nothing has changed then."""
        with self._changes(name):
            before = self.served.get(name)
            folder = before.bundle.root if before else self._failure(name).folder
            model = await self._serve(name, folder)
            if before:
                await self._retire(before)
            return model

    async def unload(self, name: str) -> None:
        """Serve a model no longer, and return when its requests are finished."""
        with self._changes(name):
            if name not in self.served:
                self._failure(name)
                del self.failed[name]
                return
            model = self.served.pop(name)
            self._on_change()
            await self._retire(model)

    @contextmanager
    def _changes(self, name: str) -> Generator[None]:
        """Keep other operations from the model. Raise Conflict if one is in progress."""
        if name in self._changing:
            raise Conflict(f"model {name} is being changed already: wait until that is done")
        self._changing.add(name)
        try:
            yield
        finally:
            self._changing.discard(name)

    def _failure(self, name: str) -> Failure:
        if name not in self.failed:
            known = ", ".join([*self.served, *self.failed]) or "none"
            raise NotFound("unknown_model", f"no model {name!r} is known; those known: {known}")
        return self.failed[name]

    async def _serve(self, name: str, folder: Path) -> Model:
        """Open a bundle while others run, and serve it under its name. Raise Invalid."""
        try:
            bundle = await asyncio.to_thread(load_bundle, folder)
            if bundle.manifest.name != name:
                found = bundle.manifest.name
                raise Invalid(f"{folder} holds a model named {found}: load it as {found}")
            model = await self._start(bundle)
        except StartupError as error:
            log_error("model not opened", model=name, reason=str(error))
            raise Invalid(str(error)) from error
        self.served[name] = model
        self._forget_failure(name, folder)
        self._on_change()
        return model

    def _forget_failure(self, name: str, folder: Path) -> None:
        """Forget a model that did not open, by its name or, if that was not known, its folder."""
        for each, failure in [*self.failed.items()]:
            if each == name or failure.folder.resolve() == folder.resolve():
                del self.failed[each]

    async def _retire(self, model: Model) -> None:
        """Close an engine once no request uses its model, at the latest after settings.timeout
        seconds: every request has then been answered."""
        self._retiring.add(model)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.timeout):
                await model.unused.wait()
        await model.supervisor.close()
        self._retiring.discard(model)
        logger.info("model closed", model=model.name, folder=str(model.bundle.root))
