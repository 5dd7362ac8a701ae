"""The Open Inference Protocol, version 2, over HTTP, as KServe and Triton speak it:
https://github.com/kserve/open-inference-protocol. `models` says what is served.
"""

import zlib
from collections.abc import Container, Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel

from service.api.answering.respond import Computed, respond
from service.api.endpoints import models
from service.api.protocols.open_inference.models import (
    TASKS,
    Output,
    ResultDocument,
    Task,
    outputs_of,
    read_sequences,
)
from service.api.protocols.open_inference.tensors import (
    Form,
    InferRequest,
    Tensor,
    check_name,
    pad,
    read_inputs,
    split_body,
    write_tensors,
)
from service.api.reading.call import Call, find_model
from service.api.reading.json_route import JsonRoute, read_body, receive
from service.api.reading.validation_errors import validate
from service.errors import (
    Fault,
    HeedError,
    Invalid,
    NotFound,
    TooLarge,
    Unparsable,
    UnsupportedMediaType,
    shorten,
)
from service.formats.json import JSON, Document, Pieces
from service.http.messages.problems import LONGEST_DETAIL, ErrorForm, encode_json
from service.serving.model import Model

HEADER_LENGTH = "Inference-Header-Content-Length"
BINARY = "application/octet-stream"
BINARY_OUTPUT = "binary_data_output"  # a parameter: whether all outputs are binary
IGNORED = ("priority", "timeout")  # parameters of Triton's scheduler, which a server may ignore


def write_error(error: HeedError, _path: str, _request_id: str) -> bytes:
    return encode_json({"error": shorten(error.detail, LONGEST_DETAIL)})


# The protocol has a document of its own.
router = APIRouter(prefix="/v2", include_in_schema=False, route_class=JsonRoute)


def find_task(call: Call, name: str, version: str | None) -> tuple[Model, Task]:
    """Return the model of this name, and its task. Raise NotFound, naming all models, or the one
    version of this model."""
    known = call.service.registry.served.values()
    served = {
        model.name + suffix: (model, task)
        for model in known
        for suffix, task in TASKS.items()
        if not task.needs or task.needs & model.engine.opened.graphs
    }
    served |= {model.name: (model, TASKS[""]) for model in known}  # one may be named x.score
    model, task = find_model(served, name, call.service.registry.failed)
    own = model.bundle.version
    if version not in (None, own):
        detail = f"model {name} has no version {shorten(version)!r}: ask for {own}, or for none"
        raise NotFound("unknown_model", detail)
    return model, task


@router.get("")
async def show_server(call: Call) -> dict[str, Any]:
    return {"name": "heed", "version": call.app.version, "extensions": ["binary_tensor_data"]}


@router.get("/health/live")
async def server_live() -> dict[str, bool]:
    return {"live": True}


@router.get("/health/ready")
async def server_ready(call: Call) -> dict[str, bool]:
    await models.ready(call)
    return {"ready": True}


@router.get("/models/{name}/ready")
@router.get("/models/{name}/versions/{version}/ready")
async def inference_model_ready(
    call: Call, name: str, version: str | None = None
) -> dict[str, Any]:
    model, _ = find_task(call, name, version)
    await models.model_ready(model.name, call)
    return {"name": name, "ready": True}


@router.get("/models/{name}")
@router.get("/models/{name}/versions/{version}")
async def show_inference_model(call: Call, name: str, version: str | None = None) -> dict[str, Any]:
    """Describe a model. `parameters`, which the protocol lacks, is their JSON Schema."""
    model, task = find_task(call, name, version)
    outputs = outputs_of(task, model)
    return {
        "name": name,
        "versions": [model.bundle.version],
        "platform": "onnx_onnxv1",
        "inputs": describe_tensors(task.inputs),
        "outputs": describe_tensors({each: output.form for each, output in outputs.items()}),
        "parameters": task.schema,
    }


def describe_tensors(forms: Mapping[str, Form]) -> list[dict[str, Any]]:
    return [
        {"name": name, "datatype": form.datatype, "shape": [-1] * form.rank}
        for name, form in forms.items()
    ]


@router.post("/models/{name}/infer")
@router.post("/models/{name}/versions/{version}/infer")
async def infer(call: Call, name: str, version: str | None = None) -> Response:
    content = await read_content(call)
    header, binary = split_body(content, call.headers.get(HEADER_LENGTH))
    asked = await read_body(call, InferRequest, header)
    name, version = asked.model_name or name, asked.model_version or version
    model, task = find_task(call, name, version)

    def read() -> BaseModel:
        fields = gather_fields(asked, task, binary, model)
        return validate(task.body, {"model": model.name, **fields})

    body = await call.compute_reading(read, len(content))
    chosen = choose_outputs(asked, outputs_of(task, model), body)
    in_binary = choose_binary(asked, chosen)
    try:
        computed = count_padding(await task.run(body, call))
    except (Invalid, TooLarge) as error:
        sent = {tensor.name for tensor in asked.inputs}
        raise error.change_faults(partial(name_input, sent)) from None
    answer = {"model_name": name, "model_version": model.bundle.version}
    answer |= {"id": asked.id} if asked.id else {}
    length = 0

    def write(document: Document) -> Pieces:
        nonlocal length
        results = document["results"]
        tensors = {each: write_tensor(task.outputs[each], results) for each in chosen}
        json, content = write_tensors(answer, tensors, in_binary)
        if not in_binary:
            return json
        header = [*json]
        length = sum(map(len, header))
        return [*header, *content]

    response = await respond(call, computed, BINARY if in_binary else JSON, write)
    if in_binary:
        response.headers[HEADER_LENGTH] = str(length)
    return response


async def read_content(call: Call) -> bytes:
    """Return the body, decompressed. Raise UnsupportedMediaType for another compression."""
    content = await receive(call)
    coding = call.headers.get("content-encoding", "identity").lower()
    if coding == "identity":
        return content
    if coding not in ("gzip", "deflate"):
        detail = f"content-encoding {shorten(coding)} is not supported: send gzip, deflate or none"
        raise UnsupportedMediaType(detail)
    limit = call.settings.max_body_bytes
    # It waits compressed, and takes milliseconds however much it gives.
    content = await call.compute_reading(lambda: decompress(content, limit), len(content))
    await call.hold(len(content))
    return content


def decompress(content: bytes, limit: int) -> bytes:
    """Decompress bytes of gzip or zlib. Raise TooLarge if they give more than `limit` bytes, and
    Unparsable for other bytes."""
    stream = zlib.decompressobj(zlib.MAX_WBITS | 32)  # 32: either of the two formats
    try:
        plain = stream.decompress(content, limit + 1)
    except zlib.error as error:
        raise Unparsable(f"the body cannot be decompressed: {error}") from error
    if len(plain) > limit:
        detail = f"the body has more than {limit} bytes when decompressed, which is the limit"
        raise TooLarge(f"{detail}: send less")
    if not stream.eof or stream.unused_data:
        raise Unparsable("the compressed body must be one whole gzip or zlib stream")
    return plain


def name_input(sent: Container[str], fault: Fault) -> Fault:
    """Return a fault of a source or a target with the name of the input that was sent for it."""
    side = fault.pointer.split("/")[1] if fault.pointer else ""
    if f"{side}_ids" not in sent:
        return fault
    return Fault(f"/{side}_ids{fault.pointer.removeprefix(f'/{side}')}", fault.detail)


def gather_fields(asked: InferRequest, task: Task, binary: bytes, model: Model) -> dict[str, Any]:
    """Return the fields of a body: parameters under their own names, and the contents of inputs.

    Raise Invalid for a parameter or an input that the model lacks, for a missing input, and for a
    parameter that does not stand in `parameters`.
    """
    check_places(asked, task, model)
    parameters = {
        name: value
        for name, value in asked.parameters.items()
        if name not in (BINARY_OUTPUT, *IGNORED)
    }
    for name in parameters:
        check_name(name, task.parameters, "parameter")
    values = read_inputs(asked.inputs, task.inputs, binary)
    sides = [side for side in ("source", "target") if side in task.inputs]
    pad_id = model.manifest.pad_id
    return parameters | {
        side: read_sequences(values, side, task.body.model_fields[side].is_required(), pad_id)
        for side in sides
    }


def check_places(asked: InferRequest, task: Task, model: Model) -> None:
    """Raise Invalid for parameters that must be sent elsewhere, and for those that do not stand in
    `parameters`."""
    extra = asked.model_extra or {}
    if absent := [name for name in task.absent if name in extra or name in asked.parameters]:
        instead = {name: task.absent[name].format(model=model.name) for name in absent}
        raise Invalid.of(
            [Fault(f"/{name}", f"is not a parameter here: {instead[name]}") for name in absent]
        )
    if misplaced := [name for name in task.parameters if name in extra]:
        raise Invalid.of([Fault(f"/{name}", "must be in parameters") for name in misplaced])


def choose_outputs(
    asked: InferRequest, outputs: Mapping[str, Output], body: BaseModel
) -> list[str]:
    """Return the names of the outputs to send. Raise Invalid for one that the answer lacks."""
    for each in asked.outputs:
        check_name(each.name, list(outputs), "output")
        given = outputs[each.name].given
        if not given.holds(body):
            detail = f"is not an output of this request: {given.advice}"
            raise Invalid.at(f"/{each.name}", detail)
    chosen = dict.fromkeys(each.name for each in asked.outputs)
    return list(chosen) or [name for name, each in outputs.items() if each.given.holds(body)]


def choose_binary(asked: InferRequest, chosen: Sequence[str]) -> set[str]:
    """Return the outputs to send in binary. Raise Invalid unless BINARY_OUTPUT is a boolean."""
    all_binary = asked.parameters.get(BINARY_OUTPUT, False)
    if not isinstance(all_binary, bool):
        raise Invalid.at(f"/{BINARY_OUTPUT}", "must be true or false")
    named = {each.name: each.parameters.binary_data for each in asked.outputs}
    own = {name: binary for name, binary in named.items() if binary is not None}
    return {name for name in chosen if own.get(name, all_binary)}


def count_padding(computed: Computed) -> Computed:
    """Add the tensors to the size, which are written padded to the longest, after the document."""
    longest = max((answer.size for answer in computed.answers), default=0)
    return computed._replace(size=computed.size + len(computed.answers) * longest)


def write_tensor(output: Output, results: Sequence[ResultDocument]) -> Tensor:
    return Tensor(output.form.datatype, pad(list(map(output.read, results)), output.form))


ERRORS = ErrorForm(
    ["/v2"],
    write_error,
    {422: 400},
    endpoints={
        each.path: each.methods or () for each in router.routes if isinstance(each, APIRoute)
    },
)
