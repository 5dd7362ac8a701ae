"""int8 gives the same answers whether or not the CPU has VNNI."""

import json

import onnx
import pytest

from service.runtime.providers import PRODUCT
from tests.emulation import needs_emulator, run_on_avx2
from tests.int8_answers import decode, largest_product
from tests.write_product import product_graph

WORDS = ["heed", "attention", "transformer", "naive", "through", "psychology", "o'clock", "banana"]
EXACT = 255 * 127 * 256


def test_the_product_that_the_service_runs_is_the_one_described():
    assert onnx.load(PRODUCT).graph == product_graph().graph


def test_the_largest_product_is_exact():
    assert largest_product() == EXACT


@needs_emulator
def test_a_cpu_without_vnni_computes_the_same(g2p, tmp_path):
    """The sums are exact; the float operators around them may round their last bits otherwise."""
    sources = tmp_path / "sources.json"
    sources.write_text(json.dumps(WORDS))
    found = json.loads(run_on_avx2("-m", "tests.int8_answers", str(g2p), str(sources)))
    assert found["saturates"]
    assert found["product"] == EXACT
    for (text, log_prob), (our_text, our_log_prob) in zip(
        found["answers"], decode(g2p, WORDS), strict=True
    ):
        assert text == our_text
        assert log_prob == pytest.approx(our_log_prob, abs=0.05)
