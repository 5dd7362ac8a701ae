"""Compose the application: routes, middleware, error handlers, and the engines it opens."""

import copy
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
from typing import Any

from anyio import CapacityLimiter
from fastapi import FastAPI
from fastapi.encoders import jsonable_encoder
from fastapi.routing import APIRoute
from fastapi.telemetry import TelemetryConfig
from fastapi_offline import FastAPIOffline
from opentelemetry.trace import TracerProvider
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import compile_path
from starlette.staticfiles import StaticFiles
from typing_extensions import override

from service import __version__
from service.api import routes
from service.api.answering.decode_answer import EVENTS
from service.api.answering.examples import INTRODUCTION, fit_to_models, show_answers
from service.api.answering.responses import REFERENCE, Problem
from service.api.endpoints import administration, attend, encode, metrics, models, tokenize
from service.api.protocols import openai
from service.api.protocols.hugging_face import routes as hugging_face
from service.api.protocols.libretranslate import routes as libretranslate
from service.api.protocols.open_inference import routes as open_inference
from service.api.reading.call import Service
from service.errors import HeedError
from service.http.limits import Budget
from service.http.messages import docs
from service.http.messages.prefix import RootPrefix, check_prefix, path_of
from service.http.messages.problems import Paths, answer_heed_error, answer_http_exception
from service.http.middleware.answers import Errors, Negotiation
from service.http.middleware.cors import Cors
from service.http.middleware.door import Admission, Door, HostCheck, RequestLimits, hosts_of
from service.http.middleware.keys import KeyCheck, Keys, read_admin_key, read_keys
from service.http.middleware.metrics import RequestMetrics
from service.http.middleware.observe import Observe
from service.runtime.mechanisms import Mechanisms
from service.serving.registry import OpenEngine, Registry
from service.serving.supervisor import Supervisor
from service.settings.settings import MECHANISMS, WEB, Settings

ENDPOINTS = (routes, encode, tokenize, attend, models, metrics, docs)
# By their names in HEED_PROTOCOLS. Each has a `router`, and ERRORS, the form of its errors.
PROTOCOLS = {
    "open-inference": open_inference,
    "openai": openai,
    "libretranslate": libretranslate,
    "hugging-face": hugging_face,
}


def create_app(
    settings: Settings, open_engine: OpenEngine = Supervisor, tracing: TracerProvider | None = None
) -> FastAPI:
    """Return the application. Its lifespan opens the bundles and raises StartupError.

    `open_engine` makes the engine of each bundle. Benchmarks pass another function, to put
    other engines behind the same endpoints. `tracing` gets the spans of all requests.
    """

    def show_models() -> None:
        manifests = [model.manifest for model in service.registry.served.values()]
        app.openapi_schema = fit_to_models(copy.deepcopy(document), manifests)

    limits = limits_of(settings)
    service = make_service(settings, limits, Registry(settings, open_engine, show_models))
    app = FastAPIOffline(
        title="Heed",
        summary="Serve encoder-decoder Transformers over HTTP and show what they attend to.",
        description=INTRODUCTION,
        version=__version__,
        lifespan=lifespan,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # many clients would follow without the body
        telemetry=telemetry_of(tracing),
        generate_unique_id_function=name_operation,
        default_response_class=JSONLine,
    )
    app.state.service = service
    add_routes(app, service)
    add_middleware(app, service, limits, tracing)
    add_error_handlers(app)
    document = app.openapi()
    add_schemas(document, [Problem, *EVENTS])
    show_answers(document)
    routes.document_keys(document, keys=service.keys is not None, admin=service.admin is not None)
    return app


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    """Serve the models of the settings. Raise StartupError."""
    service: Service = app.state.service
    service.mechanisms = Mechanisms(MECHANISMS)
    try:
        await service.registry.open()
        yield
    finally:
        await service.registry.close()


def limits_of(settings: Settings) -> RequestLimits:
    return RequestLimits(
        admission=Admission(settings.max_requests, settings.timeout),
        body_bytes=settings.max_body_bytes,
        bodies=Budget(settings.max_held_bytes // 4),
        answers=Budget(max(settings.max_held_bytes, settings.max_answer_bytes)),
        exempt=settings.root_path + routes.CHANGES,
    )


def make_service(settings: Settings, limits: RequestLimits, registry: Registry) -> Service:
    """Return what all requests share. The admin key also opens what API keys open."""
    keys = read_keys(settings)
    admin = read_admin_key(settings, keys)
    counted = RequestMetrics()
    counted.registry.register(metrics.ModelCollector(registry))
    return Service(
        settings=settings,
        admission=limits.admission,
        registry=registry,
        metrics=counted,
        answers=limits.answers,
        cores=CapacityLimiter(settings.cores),
        keys=Keys([*keys, admin] if admin else keys) if keys else None,
        admin=Keys([admin], "admin key") if admin else None,
    )


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the endpoints, those of the protocols that are on, and the page."""
    settings = service.settings
    protocols = [PROTOCOLS[name] for name in settings.protocols]
    forms = [protocol.ERRORS for protocol in protocols]
    if "openai" in settings.protocols:
        forms.append(openai.MODEL_ERRORS)
    for endpoint in (*ENDPOINTS, *protocols):
        app.include_router(endpoint.router)
    app.include_router(administration.router, include_in_schema=service.admin is not None)
    app.mount("/web", StaticFiles(directory=WEB))
    every_path = route_paths(app, settings)
    patterns = {path: compile_path(path)[0] for path in every_path if path}
    app.state.paths = Paths(settings.root_path, forms, patterns, other_protocols(settings))
    if settings.root_path:
        check_prefix(settings.root_path, every_path)


def telemetry_of(provider: TracerProvider | None) -> TelemetryConfig:
    """Return what FastAPI traces: a span for each request, unless its path is quiet. Metrics
    and logs are our own."""
    return {
        "tracing": provider is not None,
        "tracer_provider": provider,
        "metrics": False,
        "logs": False,
        "operation_spans": False,
        "exclude": lambda scope: bool(routes.QUIET.fullmatch(path_of(scope))),
    }


def add_schemas(document: dict[str, Any], models: Sequence[type[BaseModel]]) -> None:
    """Add the schemas of models, and of their fields, to a finished OpenAPI document. Schemas that
    it already has stay as they are."""
    _, found = models_json_schema(
        [(model, "validation") for model in models], ref_template=REFERENCE
    )
    schemas = document["components"]["schemas"]
    # FastAPI leaves out every null, too: with a default of null no field would be optional.
    for name, schema in jsonable_encoder(found["$defs"], exclude_none=True).items():
        schemas.setdefault(name, schema)


def other_protocols(settings: Settings) -> dict[str, str]:
    """Return, for each path of a protocol that is off, the HEED_PROTOCOLS that would add it."""
    return {
        getattr(route, "path", "").partition("/{")[0]: ",".join([*settings.protocols, name])
        for name, protocol in PROTOCOLS.items()
        if name not in settings.protocols
        for route in protocol.router.routes
    }


def route_paths(app: FastAPI, settings: Settings) -> list[str]:
    """Return the paths of all routes. FastAPI keeps those of an included router apart."""
    protocols = (PROTOCOLS[name] for name in settings.protocols)
    parts = (*ENDPOINTS, administration, *protocols)
    included = (part.router.routes for part in parts)
    return [getattr(route, "path", "") for route in chain(app.routes, *included)]


class JSONLine(JSONResponse):
    """JSON with a line break, as terminals like it."""

    @override
    def render(self, content: Any) -> bytes:
        return super().render(content) + b"\n"


def name_operation(route: APIRoute) -> str:
    """Return the operationId of an endpoint. Generated clients name their functions by it."""
    return route.name


def add_middleware(
    app: FastAPI, service: Service, limits: RequestLimits, tracing: TracerProvider | None
) -> None:
    """Add the middleware, innermost first."""
    settings = service.settings
    app.add_middleware(Door, limits=limits)
    app.add_middleware(Negotiation, cores=settings.cores)
    if service.keys:
        libre = "libretranslate" in settings.protocols
        keys_in_body = libretranslate.KEY_IN_BODY if libre else ()
        app.add_middleware(
            KeyCheck, keys=service.keys, needs_key=routes.needs_key, keys_in_body=keys_in_body
        )
    app.add_middleware(HostCheck, hosts=hosts_of(settings))
    app.add_middleware(Errors)
    if settings.cors_origins:
        app.add_middleware(Cors, origins=settings.cors_origins)
    tracer = tracing.get_tracer("heed") if tracing else None
    app.add_middleware(Observe, metrics=service.metrics, tracer=tracer, quiet=routes.QUIET)
    if settings.root_path:
        app.add_middleware(RootPrefix, prefix=settings.root_path)


def add_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(HeedError, answer_heed_error)
    app.add_exception_handler(HTTPException, partial(answer_http_exception, routes.OTHER_PATHS))
