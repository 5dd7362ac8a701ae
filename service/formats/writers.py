"""The media types of attention documents, and what writes each."""

from collections.abc import Callable
from typing import Any

from service.formats.arrays import to_npz, to_safetensors
from service.formats.heatmaps import draw_blocks
from service.formats.html import to_page
from service.formats.json import JSON, Document, Pieces, to_json_pieces
from service.formats.png import to_png
from service.formats.svg import to_svg


def drawn(document: Document) -> Any:
    result = document["results"][0]
    return draw_blocks(result["attention"], result["source"], result["target"])


FORMS: dict[str, Callable[[Document], Pieces]] = {
    JSON: to_json_pieces,
    "application/npz": to_npz,
    "application/safetensors": to_safetensors,
    "text/html": to_page,
    "image/svg+xml": lambda document: [to_svg(drawn(document))],
    "image/png": lambda document: [to_png(drawn(document))],
}


FILES = {"application/npz": "attention.npz", "application/safetensors": "attention.safetensors"}


OF_ONE = {"image/svg+xml", "image/png"}  # source
