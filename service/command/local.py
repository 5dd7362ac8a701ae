"""An engine in the process of a command, behind the functions that answer requests of the service.

A command thus answers as the service does, with the same options, errors and JSON.
"""

import asyncio
import json
import logging
import sys
from collections import deque
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import structlog
from anyio import CapacityLimiter
from orjson import Fragment
from typing_extensions import override

from service.api.answering.respond import Computed
from service.api.reading.call import Call, Service
from service.api.reading.faults import Faults
from service.api.reading.validation_errors import validate
from service.bundle.manifest import load_bundle
from service.engine.engine import Engine
from service.engine.opening import open_engine
from service.engine.scheduler import Job
from service.errors import PassFailed, StartupError
from service.formats.json import JSON, Document, to_json
from service.formats.writers import WRITERS
from service.http.limits import Budget, Record, Terms
from service.http.middleware.door import Admission
from service.http.middleware.metrics import RequestMetrics
from service.serving.client import EngineClient
from service.serving.model import Model
from service.serving.registry import Registry
from service.serving.supervisor import Supervisor
from service.settings.settings import Settings
from service.text.opening import open_tokenizers
from service.wire import Answer, Entry

MOST_ROWS = 1 << 30  # sources or rows: a command shares its engine with nobody


class LocalEngine(EngineClient):
    """An engine in this process."""

    local: Engine | None = None

    @override
    async def start(self) -> None:
        self.local = open_engine(self.bundle, self._settings)
        self.opened = self.local.opened
        self.local.start()

    @override
    async def close(self) -> None:
        if self.local:
            self.local.close()

    async def run(self, entries: Sequence[Entry], *, partial: bool) -> list[Future[Answer]]:
        """Return the outcomes of the entries when all have ended. If one fails, raise its error and
        cancel the others, unless the request is `partial`.

        A worker wakes the event loop once for all entries: it has to wait for the interpreter's
        lock as long as the loop runs.
        """
        assert self.local
        jobs = [Job(entry) for entry in entries]
        ended = deque[Future[Answer]]()
        woken, loop = asyncio.Event(), asyncio.get_running_loop()

        def end(outcome: Future[Answer]) -> None:
            ended.append(outcome)
            if len(ended) == len(jobs) or (not partial and failure_of(outcome)):
                loop.call_soon_threadsafe(woken.set)

        for job in jobs:
            job.result.add_done_callback(end)
        self.local.queue.put(jobs)
        try:
            await woken.wait()
        finally:
            if len(ended) < len(jobs):
                for job in jobs:
                    job.result.cancel()
        if not partial and (failure := next(filter(None, map(failure_of, ended)), None)):
            raise failure
        return [job.result for job in jobs]


def failure_of(outcome: Future[Answer]) -> BaseException | None:
    return None if outcome.cancelled() else outcome.exception()


class LocalCall(Call):
    """A request that nobody sent: it may take any time, and nobody leaves."""

    @override
    async def submit_and_wait(
        self,
        model: Model,
        entries: Sequence[Entry],
        faults: Faults | None = None,
        results: Sequence[int] = (),
    ) -> list[Answer]:
        if not entries:
            return []
        engine = model.engine
        assert isinstance(engine, LocalEngine)
        if not (faults and faults.partial):
            outcomes = await engine.run(entries, partial=False)
            return [outcome.result() for outcome in outcomes]
        answers: list[Answer] = []
        outcomes = await engine.run(entries, partial=True)
        for result, outcome in zip(results, outcomes, strict=True):
            failure = failure_of(outcome)
            if isinstance(failure, PassFailed):
                faults.add(failure, result)
            answers.append(Answer() if isinstance(failure, PassFailed) else outcome.result())
        return answers

    @override
    async def submit_in_parts(
        self, model: Model, entries: Sequence[Entry], faults: Faults, results: Sequence[int]
    ) -> list[Answer]:
        return await self.submit_and_wait(model, entries, faults, results)


class LocalModel:
    """The only model of a service without a server."""

    def __init__(self, service: Service) -> None:
        self._service = service
        (model,) = service.registry.served.values()
        self.name = model.bundle.manifest.name
        self.version = f"{model.bundle.version} {model.engine.opened.precision}"

    async def ask(self, path: str, body: Mapping[str, Any], accept: str = JSON) -> bytes:
        """Return the service's answer. Raise HeedError."""
        with local_call(self._service, path) as call:
            computed = await compute(path, body, call)
            return b"".join(WRITERS[accept](computed.write()))

    async def ask_document(self, path: str, body: Mapping[str, Any]) -> Document:
        """Return what the service's JSON is made of. Raise HeedError."""
        with local_call(self._service, path) as call:
            document = (await compute(path, body, call)).write()
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
            from service.api.endpoints.decode.body import DecodeRequest
            from service.api.endpoints.decode.endpoint import run_decode

            return await run_decode(validate(DecodeRequest, body), call)


@asynccontextmanager
async def open_local(bundle: Path | None) -> AsyncGenerator[LocalModel]:
    """Open a bundle, or else that of the settings by variables. Raise ValidationError and
    StartupError."""
    async with local_service(local_settings(bundle)) as service:
        yield LocalModel(service)


def local_settings(bundle: Path | None) -> Settings:
    """Return the settings of environment variables, with any number of sources and rows."""
    settings = Settings(max_sources=MOST_ROWS, max_rows=MOST_ROWS)
    return settings.model_copy(update={"bundles": [bundle]}) if bundle else settings


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
                answers=Budget(MOST_ROWS),
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


@contextmanager
def local_call(service: Service, path: str) -> Generator[LocalCall]:
    """Yield a call that ends with the block, which gives back what it holds of the service."""
    terms = Terms()
    state = {"record": Record(), "request_id": "", "terms": terms}
    app = SimpleNamespace(state=SimpleNamespace(service=service))
    scope = {"type": "http", "app": app, "state": state, "path": path, "headers": []}
    try:
        yield LocalCall(scope, asyncio.get_running_loop().create_future)
    finally:
        terms.end(service.answers)
