"""Write a document as one HTML file that needs no other file.

The file draws with the page's own modules. They import each other by names ("view/labels.js"). The
page's import map resolves these to addresses below /web, the file's to data: URLs of the modules.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from string import Template

from service.formats.json import Document, to_json_pieces
from service.settings.settings import WEB

INLINE_SCRIPT = re.compile(
    rb'<script(?![^>]*\b(?:src=|type="application/json"))[^>]*>(.*?)</script>', re.DOTALL
)
# Scripts run with these hashes, and from data: URLs: browsers do not agree yet on hashes of
# imported modules. Nothing is loaded from a host, nor sent to one.
EXPORT_POLICY = (
    "default-src 'none'; script-src {hashes} data:; style-src 'unsafe-inline'; img-src data:;"
    " base-uri 'none'; form-action 'none'"
)


def to_html(document: Document) -> Iterator[bytes]:
    before, after = frame()
    before = before.replace("$policy", export_policy())
    # "</script>" in a text would end the script that holds the document.
    yield before.encode()
    yield from (piece.replace(b"<", b"\\u003c") for piece in to_json_pieces(document))
    yield after.encode()


@cache
def export_policy() -> str:
    """Return the Content-Security-Policy of a file."""
    return EXPORT_POLICY.format(hashes=" ".join(script_hashes("".join(frame()).encode())))


@cache
def frame() -> tuple[str, str]:
    """Return what comes before and after the document in a file, without its policy."""
    before, after = read(WEB / "export" / "index.html").split("$document")
    style = "".join(map(read, sorted((WEB / "view").glob("*.css"))))
    return Template(before).safe_substitute(style=style, import_map=import_map()), after


def script_hashes(page: bytes) -> list[str]:
    """Return the hash of each inline script of a page. The hash lets the script run under a
    Content-Security-Policy (Content Security Policy Level 3, section 2.3.1)."""
    digests = (hashlib.sha256(script).digest() for script in INLINE_SCRIPT.findall(page))
    return [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]


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
