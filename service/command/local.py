"""An engine in the process of a command, behind the functions that answer requests of the service.

A command thus answers as the service does, with the same options, errors and JSON.
"""

import asyncio
import json
import logging
import math
import sys
from collections import deque
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import structlog
from anyio import CapacityLimiter
from orjson import Fragment
from typing_extensions import override

from service.api.answering.respond import Computed
from service.api.reading.call import Call, Service
from service.api.reading.validation_errors import validate
from service.bundle.manifest import load_bundle
from service.engine.engine import Engine
from service.engine.opening import open_engine
from service.engine.scheduler import Job
from service.errors import StartupError
from service.formats.json import JSON, Document, to_json
from service.formats.writers import WRITERS
from service.http.limits import Admission, Budget, Record, Terms
from service.http.middleware.metrics import RequestMetrics
from service.serving.client import EngineClient, OnProgress, settle
from service.serving.model import Model
from service.serving.registry import Registry
from service.serving.supervisor import Supervisor
from service.settings.settings import Settings
from service.text.opening import open_tokenizers
from service.wire import NO_REST, Answer, Entry, Rest

MOST = 1 << 30  # sources or rows: a command shares its engine with nobody


class LocalEngine(EngineClient):
    """Passes entries to an engine in this process."""

    local: Engine | None = None

    @override
    async def start(self) -> None:
        self.local = open_engine(self.bundle, self._settings)
        self.opened = self.local.opened
        self._ended = deque[tuple[asyncio.Future[Answer], Future[Answer]]]()
        self._loop = asyncio.get_running_loop()
        self.local.start(self._wake)

    @override
    async def close(self) -> None:
        if self.local:
            self.local.close()

    @override
    def submit(
        self,
        entries: Sequence[Entry],
        on_progress: OnProgress | None = None,
        seconds: float = math.inf,
        request_id: str = "",
        rest: Rest = NO_REST,
    ) -> list[asyncio.Future[Answer]]:
        assert self.local
        jobs = [Job(entry, request_id) for entry in entries]
        self.local.queue.put(jobs, seconds, rest)
        futures = [self._loop.create_future() for _ in jobs]
        for future, job in zip(futures, jobs, strict=True):
            future.add_done_callback(partial(cancel_with, job.result))
            job.result.add_done_callback(partial(self._collect, future))
        self._pass_on()  # outcomes of a pass that a worker has already ended
        return futures

    def _collect(self, future: asyncio.Future[Answer], outcome: Future[Answer]) -> None:
        """Collect the outcome of a job. Once for all of a pass, the event loop is woken."""
        self._ended.append((future, outcome))

    def _wake(self) -> None:
        if self._ended:
            self._loop.call_soon_threadsafe(self._pass_on)

    def _pass_on(self) -> None:
        """Resolve the futures of all jobs that have ended."""
        while self._ended:
            future, outcome = self._ended.popleft()
            if not outcome.cancelled():
                settle(future, outcome.exception() or outcome.result())


def cancel_with(outcome: Future[Answer], future: asyncio.Future[Answer]) -> None:
    """Cancel a job whose future was cancelled, which frees its rows."""
    if future.cancelled():
        outcome.cancel()


class LocalModel:
    """The only model of a service without a server."""

    def __init__(self, service: Service) -> None:
        self._service = service
        (model,) = service.registry.served.values()
        self.version = f"{model.bundle.version} {model.engine.opened.precision}"

    async def ask(self, path: str, body: Mapping[str, Any], accept: str = JSON) -> bytes:
        """Return the service's answer. Raise HeedError."""
        computed = await compute(path, body, make_call(self._service, path))
        return b"".join(WRITERS[accept](computed.write()))

    async def ask_document(self, path: str, body: Mapping[str, Any]) -> Document:
        """Return what the service's JSON is made of. Raise HeedError."""
        document = (await compute(path, body, make_call(self._service, path))).write()
        results = [
            json.loads(to_json(each)) if isinstance(each, Fragment) else each  # a problem
            for each in document["results"]
        ]
        return {**document, "results": results}


async def compute(path: str, body: Mapping[str, Any], call: Call) -> Computed:
    """Run the endpoint at this path. Its module is imported here, since others are not needed."""
    match path:
        case "/v1/attention":
            from service.api.endpoints.attention import AttentionRequest, run_attention

            return await run_attention(validate(AttentionRequest, body), call)
        case "/v1/attribution":
            from service.api.endpoints.attribution import AttributionRequest, run_attribution

            return await run_attribution(validate(AttributionRequest, body), call)
        case "/v1/score":
            from service.api.endpoints.score import ScoreRequest, run_score

            return await run_score(validate(ScoreRequest, body), call)
        case _:
            from service.api.endpoints.decode import run_decode
            from service.api.endpoints.decode_body import DecodeRequest

            return await run_decode(validate(DecodeRequest, body), call)


@asynccontextmanager
async def open_local(bundle: Path | None) -> AsyncGenerator[LocalModel]:
    """Open a bundle, or else that of the settings by variables. Raise ValidationError and
    StartupError."""
    settings = Settings(max_sources=MOST, max_rows=MOST)
    if bundle:
        settings = settings.model_copy(update={"bundles": [bundle]})
    async with local_service(settings) as service:
        yield LocalModel(service)


@asynccontextmanager
async def local_service(settings: Settings) -> AsyncGenerator[Service]:
    """Open the bundle of the settings. Raise StartupError."""
    if len(settings.bundles) > 1:
        raise StartupError("HEED_BUNDLES names several bundles: choose one of them with --bundle")
    with errors_logged():
        bundle = load_bundle(settings.bundles[0])
        supervisor = Supervisor(bundle, settings, LocalEngine)
        try:
            await supervisor.engine.start()
            registry = Registry(settings, Supervisor, lambda: None)
            registry.served[bundle.manifest.name] = Model(supervisor, *open_tokenizers(bundle))
            yield Service(
                settings=settings,
                admission=Admission(settings.max_requests, settings.timeout),
                registry=registry,
                metrics=RequestMetrics(),
                answers=Budget(MOST),
                cores=CapacityLimiter(settings.cores),
                keys=None,
                admin=None,
            )
        finally:
            await supervisor.engine.close()


@contextmanager
def errors_logged() -> Generator[None]:
    """Log only errors, to standard error."""
    before = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        yield
    finally:
        structlog.configure(**before)


def make_call(service: Service, path: str) -> Call:
    """Return the call of a request that nobody sent: it may take any time, and nobody leaves."""
    state = {"record": Record(), "request_id": "", "terms": Terms()}
    app = SimpleNamespace(state=SimpleNamespace(service=service))
    scope = {"type": "http", "app": app, "state": state, "path": path, "headers": []}
    return Call(scope, asyncio.get_running_loop().create_future)
