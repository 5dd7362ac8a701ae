"""docs/mechanisms.md draws every mechanism and option of /v1/attend, with the service's answers."""

import base64
import io
import json
import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from PIL import Image

from service.api.endpoints.attend_body import AttendRequest
from tests.documentation import answer_to, assert_answered_as_shown, curl_calls, split_decimals

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "mechanisms.md").read_text(encoding="utf-8")
CALLS = [*curl_calls(PAGE)]
DRAWN = [call for call in CALLS if call.file]
CELLS = re.compile(r"data:image/png;base64,([^\"]+)")


def test_the_page_has_every_mechanism_and_option():
    bodies = [json.loads(call.content) for call in CALLS]
    assert set().union(*bodies) == AttendRequest.model_fields.keys()
    mechanisms = get_args(AttendRequest.model_fields["mechanism"].annotation)
    assert {body["mechanism"] for body in bodies} == set(mechanisms)


def test_every_picture_is_below_its_request():
    shown = re.findall(r"-o (\S+)|\]\(mechanisms/(\S+)\)", PAGE)
    requests, pictures = shown[::2], shown[1::2]
    assert [name for name, _ in requests] == [name for _, name in pictures]
    assert {name for name, _ in requests} == {path.name for path in (DOCS / "mechanisms").iterdir()}


@pytest.mark.parametrize("call", [call for call in CALLS if not call.file])
def test_requests_answer_as_shown(client, call):
    assert_answered_as_shown(client, call)


@pytest.mark.parametrize("call", DRAWN, ids=lambda call: call.file)
def test_a_picture_is_the_answer_to_its_request(client, call):
    """Up to the rounding of another processor."""
    found = parts(answer_to(client, call).raise_for_status().text)
    shown = parts((DOCS / "mechanisms" / call.file).read_text())
    assert found[0] == shown[0]
    np.testing.assert_allclose(found[1], shown[1], atol=0.02)
    for cells, expected in zip(found[2], shown[2], strict=True):
        np.testing.assert_allclose(cells, expected, atol=2)


def parts(svg):
    """Return an SVG without its decimals and heatmaps, the decimals, and the cells of each map."""
    images = [Image.open(io.BytesIO(base64.b64decode(png))) for png in CELLS.findall(svg)]
    cells = [np.asarray(image.convert("RGB"), int) for image in images]
    return *split_decimals(CELLS.sub("", svg)), cells
