"""/redoc, the second reference beside Swagger's /docs, without requests to other hosts."""

from pathlib import Path

import fastapi_offline
from fastapi import APIRouter, Response
from fastapi.openapi.docs import get_redoc_html

SCRIPT = Path(fastapi_offline.__file__).parent / "static" / "redoc.standalone.js"
LOGO = b"https://cdn.redoc.ly/redoc/logo-mini.svg"  # ReDoc shows its maker's logo below the menu
NO_LOGO = b"data:,"  # fails to load without a request: ReDoc then removes the image

router = APIRouter(include_in_schema=False)


@router.get("/redoc")
async def show_redoc() -> Response:
    """Return the page. Its addresses are relative, to work behind a proxy that adds a prefix."""
    return get_redoc_html(
        openapi_url="openapi.json",
        title="Heed - ReDoc",
        redoc_js_url="redoc.js",
        redoc_favicon_url="static-offline-docs/favicon.png",
        with_google_fonts=False,
    )


@router.get("/redoc.js")
def send_redoc() -> Response:
    return Response(SCRIPT.read_bytes().replace(LOGO, NO_LOGO), media_type="text/javascript")
