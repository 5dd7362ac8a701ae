"""The pages of a browser, without requests to other hosts: / and /docs (Swagger).

Their addresses are relative, to work behind a proxy that adds a prefix.
"""

from html import escape

from fastapi import APIRouter, Request, Response
from starlette.responses import FileResponse, HTMLResponse

from service.http.messages.security import CSP, policy_for
from service.settings.settings import WEB

PAGE = (WEB / "page" / "index.html").read_bytes()
DOCS = WEB / "docs" / "index.html"

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
