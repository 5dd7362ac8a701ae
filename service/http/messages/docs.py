"""The pages of a browser, without requests to other hosts: /, /docs (Swagger) and /redoc.

Their addresses are relative, to work behind a proxy that adds a prefix.
"""

from html import escape
from pathlib import Path

import fastapi_offline
from fastapi import APIRouter, Request, Response
from fastapi.openapi.docs import get_redoc_html
from starlette.responses import FileResponse, HTMLResponse

from service.http.messages.security import CSP, policy_for
from service.settings.settings import WEB

PAGE = (WEB / "page" / "index.html").read_bytes()
DOCS = WEB / "docs" / "index.html"
FAVICON = "static-offline-docs/favicon.png"
SCRIPT = Path(fastapi_offline.__file__).parent / "static" / "redoc.standalone.js"
LOGO = b"https://cdn.redoc.ly/redoc/logo-mini.svg"  # ReDoc shows its maker's logo below the menu
NO_LOGO = b"data:,"  # fails to load without a request: ReDoc then removes the image

router = APIRouter(include_in_schema=False)


@router.get("/")
async def show_page(request: Request) -> Response:
    """Show the page. The Open Graph protocol wants an absolute address of its preview image."""
    page = PAGE.replace(b"$address", escape(str(request.base_url)).encode())
    headers = {"Cache-Control": "no-cache", CSP: policy_for(page)}
    return HTMLResponse(page, headers=headers)


@router.get("/docs")
async def show_docs() -> Response:
    return FileResponse(DOCS)


@router.get("/redoc")
async def show_redoc() -> Response:
    page = get_redoc_html(
        openapi_url="openapi.json",
        title="Heed - ReDoc",
        redoc_js_url="redoc.js",
        redoc_favicon_url=FAVICON,
        with_google_fonts=False,
    )
    page.headers[CSP] = policy_for(bytes(page.body))
    return page


@router.get("/redoc.js")
def send_redoc() -> Response:
    return Response(SCRIPT.read_bytes().replace(LOGO, NO_LOGO), media_type="text/javascript")
