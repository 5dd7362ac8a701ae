"""An attention document as one HTML page that needs no other file."""

import re
from pathlib import Path
from string import Template

from service.formats.json import HOLE, Document, Pieces, to_json_pieces

MODULES = ("labels.js", "bipartite.js", "heatmap.js")


MODULE_LINES = re.compile(r"^import .*$|^export (?=\w)", re.MULTILINE)


WEB = Path(__file__).parents[1] / "web"


def to_page(document: Document) -> Pieces:
    """One file that needs no other: the modules of the page, less their imports of each other, and
    the document, in which nothing may end a script."""
    modules = [(WEB / name).read_text(encoding="utf-8") for name in MODULES]
    script = MODULE_LINES.sub("", "\n".join(modules))
    style = (WEB / "style.css").read_text(encoding="utf-8")
    page = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    before, after = page.substitute(style=style, script=script, document=HOLE.decode()).split("\0")
    written = [bytes(piece).replace(b"<", b"\\u003c") for piece in to_json_pieces(document)]
    return [before.encode(), *written, after.encode()]
