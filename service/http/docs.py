"""The pages of a browser, without requests to other hosts: /, /docs (Swagger) and /redoc.

Their addresses are relative, to work behind a proxy that adds a prefix.
"""

from functools import cache
from pathlib import Path

import fastapi_offline
from fastapi import APIRouter, Response
from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from starlette.responses import FileResponse

from service.http.security import CSP, policy_for
from service.settings import WEB

PAGE = WEB / "page" / "index.html"
ASSETS = "static-offline-docs/"
FAVICON = f"{ASSETS}favicon.png"
SCRIPT = Path(fastapi_offline.__file__).parent / "static" / "redoc.standalone.js"
LOGO = b"https://cdn.redoc.ly/redoc/logo-mini.svg"  # ReDoc shows its maker's logo below the menu
NO_LOGO = b"data:,"  # fails to load without a request: ReDoc then removes the image

router = APIRouter(include_in_schema=False)


@router.get("/")
async def show_page() -> Response:
    return FileResponse(PAGE, headers={"Cache-Control": "no-cache", CSP: page_policy()})


@cache
def page_policy() -> str:
    return policy_for(PAGE.read_bytes())


@router.get("/docs")
async def show_docs() -> Response:
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title="Heed - Swagger UI",
        swagger_js_url=f"{ASSETS}swagger-ui-bundle.js",
        swagger_css_url=f"{ASSETS}swagger-ui.css",
        swagger_favicon_url=FAVICON,
        swagger_ui_parameters={"tryItOutEnabled": True, "defaultModelsExpandDepth": 0},
    )
    return with_policy(page)


@router.get("/redoc")
async def show_redoc() -> Response:
    page = get_redoc_html(
        openapi_url="openapi.json",
        title="Heed - ReDoc",
        redoc_js_url="redoc.js",
        redoc_favicon_url=FAVICON,
        with_google_fonts=False,
    )
    return with_policy(page)


def with_policy(page: Response) -> Response:
    """Let the inline scripts of a page run."""
    page.headers[CSP] = policy_for(bytes(page.body))
    return page


@router.get("/redoc.js")
def send_redoc() -> Response:
    return Response(SCRIPT.read_bytes().replace(LOGO, NO_LOGO), media_type="text/javascript")
