"""Write a document as one HTML file that needs no other file.

The file draws with the page's own modules. They import each other by names ("view/labels.js"). The
page's import map resolves these to addresses below /web, the file's to data: URLs of the modules.
"""

import base64
import json
from pathlib import Path
from string import Template

from service.formats.json import Document, Pieces, to_json_pieces
from service.settings import WEB


def to_html(document: Document) -> Pieces:
    before, after = read(WEB / "export" / "index.html").split("$document")
    style = read(WEB / "view" / "style.css")
    before = Template(before).substitute(style=style, import_map=import_map())
    # "</script>" in a text would end the script that holds the document.
    written = [bytes(piece).replace(b"<", b"\\u003c") for piece in to_json_pieces(document)]
    return [before.encode(), *written, after.encode()]


def import_map() -> str:
    """Return the import map of the file: a data: URL for the name of each module it needs."""
    modules = [
        path for folder in ("view", "export") for path in sorted((WEB / folder).glob("*.js"))
    ]
    urls = {path.relative_to(WEB).as_posix(): data_url(path) for path in modules}
    return json.dumps({"imports": urls})


def data_url(module: Path) -> str:
    return "data:text/javascript;base64," + base64.b64encode(module.read_bytes()).decode()


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")
