"""Calls of the stock Triton client, which wants a process of its own: it brings gevent.

Reads from standard input {"url": ..., "calls": {name: call}}, and writes the outcome of each call.
"""

import json
import sys

import numpy as np
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException, triton_to_np_dtype


def infer(client, model, inputs, outputs=(), binary=True, parameters=None, **options):
    """Return each output: its datatype, its shape, and its texts or the hexadecimal bytes."""
    tensors = []
    for name, (datatype, values) in inputs.items():
        array = np.array(values, triton_to_np_dtype(datatype))
        tensors.append(InferInput(name, array.shape, datatype))
        tensors[-1].set_data_from_numpy(array, binary_data=binary)
    wanted = [InferRequestedOutput(name, binary_data=binary) for name in outputs] or None
    result = client.infer(model, tensors, outputs=wanted, parameters=parameters, **options)
    return {
        each["name"]: write(each["datatype"], result.as_numpy(each["name"]))
        for each in result.get_response()["outputs"]
    } | ({"id": options["request_id"]} if "request_id" in options else {})


def write(datatype, array):
    if datatype == "BYTES":
        texts = [each.decode() if isinstance(each, bytes) else each for each in array.ravel()]
        return [datatype, array.shape, texts]
    return [datatype, array.shape, array.tobytes().hex()]


def call(client, method, **arguments):
    try:
        return (
            infer(client, **arguments)
            if method == "infer"
            else getattr(client, method)(**arguments)
        )
    except InferenceServerException as error:
        return {"status": error.status(), "message": error.message()}


asked = json.load(sys.stdin)
with InferenceServerClient(asked["url"]) as client:
    outcomes = {name: call(client, **arguments) for name, arguments in asked["calls"].items()}
json.dump(outcomes, sys.stdout)
