"""Numbers in the header of a safetensors file are bounded before anything is computed of them."""

import json
import time

import pytest

from service.bundle.files import check_weights
from service.errors import StartupError

WHOLE = {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}
HEADERS = {
    "axes": ({"x": {**WHOLE, "shape": [9] * 300_000}}, "x.shape must have 8 or fewer items"),
    "large axes": ({"x": {**WHOLE, "shape": [9 * 10**4000] * 1500}}, "x.shape must have 8 or"),
    "a large size": ({"x": {**WHOLE, "shape": [1 << 63]}}, "x.shape.0 must be less than"),
    "a very large size": ({"x": {**WHOLE, "shape": [10**4200] * 8}}, "x.shape.0 must be less than"),
    "large offsets": ({"x": {**WHOLE, "data_offsets": [0, 10**30]}}, "data_offsets.1 must be less"),
    "the same bytes": ({f"x{i}": WHOLE for i in range(5000)}, "tensor x1 overlaps another one"),
    "a long name": ({"x\t" * 2_000_000: {**WHOLE, "shape": [9]}}, "is not at bytes 0 to 64 of 64"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_is_refused_before_it_takes_time(tmp_path, name):
    header, said = HEADERS[name]
    text, path = json.dumps(header).encode(), tmp_path / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(64))
    started = time.process_time()
    with pytest.raises(StartupError) as refusal:
        check_weights(path, {})
    assert time.process_time() - started < 3
    assert len(str(refusal.value)) < 500
    if name != "a long name":  # of which the line shows the beginning
        assert said in str(refusal.value)
