"""Which function writes an attention document as which media type."""

from collections.abc import Callable

from service.formats.arrays import to_npz, to_safetensors
from service.formats.heatmaps import draw_blocks
from service.formats.html import to_html
from service.formats.json import JSON, Document, Pieces, to_json_pieces
from service.formats.picture import Picture
from service.formats.png import to_png
from service.formats.svg import to_svg


def draw(document: Document) -> Picture:
    """Draw the only result of a document: pictures are offered for one source."""
    (result,) = document["results"]
    return draw_blocks(result["attention"], result["source"], result["target"])


FORMS: dict[str, Callable[[Document], Pieces]] = {
    JSON: to_json_pieces,
    "application/npz": to_npz,
    "application/safetensors": to_safetensors,
    "text/html": to_html,
    "image/svg+xml": lambda document: [to_svg(draw(document))],
    "image/png": lambda document: [to_png(draw(document))],
}
OF_ONE = {"image/svg+xml", "image/png"}  # those that show the result of one source
FILES = {"application/npz": "attention.npz", "application/safetensors": "attention.safetensors"}
