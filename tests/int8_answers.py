"""python -m tests.int8_answers: print as JSON what int8 computes on the CPU it runs on."""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from service.bundle import load_bundle
from service.engine.engine import Engine
from service.engine.messages import Entry
from service.runtime.providers import open_graph
from service.search.options import SearchOptions
from service.settings import DEFAULT_BUNDLE, Precision, Provider, Settings
from service.tokenizer import open_tokenizers

DEPTH = 256
EXACT = 255 * 127 * DEPTH  # a sum that no 16 bits hold
WORDS = ["heed", "attention", "transformer", "naive", "through", "psychology", "o'clock", "banana"]


def largest_product() -> int:
    """Multiply rows of 255 (u8) with columns of 127 (s8)."""
    weight = numpy_helper.from_array(np.full((DEPTH, 8), 127, np.int8), "weight")
    rows = helper.make_tensor_value_info("rows", TensorProto.UINT8, [1, DEPTH])
    product = helper.make_tensor_value_info("product", TensorProto.INT32, [1, 8])
    node = helper.make_node("MatMulInteger", ["rows", "weight"], ["product"])
    graph = helper.make_graph([node], "product", [rows], [product], [weight])
    opset = [helper.make_opsetid("", 20)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "product.onnx"
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
        session = open_graph(path, "CPUExecutionProvider")
    (found,) = session.run(None, {"rows": np.full((1, DEPTH), 255, np.uint8)})
    return int(found[0, 0])


def pronounce(words: list[str]) -> list[tuple[str, float]]:
    """Return text and log-prob of each word's greedy answer, after the self-check at start."""
    bundle = load_bundle(DEFAULT_BUNDLE)
    source, target = open_tokenizers(bundle)
    settings = Settings(provider=Provider.cpu, precision=Precision.int8, threads=1)
    engine = Engine(bundle, settings)
    engine.start()
    options = SearchOptions(max_new_tokens=30)
    entries = [Entry(np.array(source.encode(word, "/").ids), options) for word in words]
    engine.queue.put(entries)
    best = [entry.result.result().hypotheses[0] for entry in entries]
    engine.close()
    return [(target.decode(each.token_ids).text, sum(each.log_probs)) for each in best]


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"product": largest_product(), "words": pronounce(WORDS)}))
