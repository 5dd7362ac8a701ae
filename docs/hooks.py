"""What MkDocs calls when it builds the site (mkdocs.yml)."""

import re
from pathlib import Path


def on_config(config):
    """List the decisions in the menu, in their order."""
    docs = Path(config.docs_dir)
    pages = sorted(str(page.relative_to(docs)) for page in docs.glob("adr/*.md"))
    config.nav.append({"Decisions": pages})


def on_page_markdown(markdown, page, **_):
    """Keep only the text of links to files outside docs/, which the site does not have."""
    outside = "../" * (page.file.src_uri.count("/") + 1)
    return re.sub(rf"\[([^\]]+)\]\({re.escape(outside)}[^)]*\)", r"\1", markdown)
