"""Map each media type to the function that writes a document of attention or attribution in it."""

from collections.abc import Callable

from service.formats.arrays import to_npz, to_safetensors
from service.formats.heatmaps import draw_blocks
from service.formats.html import to_html
from service.formats.json import JSON, Document, Pieces, field_of_blocks, to_json_line
from service.formats.picture import Picture
from service.formats.png import to_png
from service.formats.svg import to_svg


def draw_document(document: Document) -> Picture:
    """Draw the only result of a document: pictures are offered only for a single source."""
    (result,) = document["results"]
    field = field_of_blocks(document)
    return draw_blocks(result[field], result["source"], result["target"], field)


WRITERS: dict[str, Callable[[Document], Pieces]] = {
    JSON: to_json_line,
    "application/npz": to_npz,
    "application/safetensors": to_safetensors,
    "text/html": to_html,
    "image/svg+xml": lambda document: [to_svg(draw_document(document))],
    "image/png": lambda document: [to_png(draw_document(document))],
}
SINGLE_SOURCE = {"image/svg+xml", "image/png"}  # pictures show the result of one source
FILE_NAMES = {
    "application/npz": "attention.npz",
    "application/safetensors": "attention.safetensors",
}
