"""A prefix of all paths, which a proxy shows to clients."""

from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import StartupError


class RootPrefix:
    """Puts the prefix before the path of each request from which the proxy has stripped it. The
    router skips it: it is the `root_path` of ASGI."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self.app = app
        self.prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["root_path"] = self.prefix
            if not begins(scope["path"], self.prefix):
                scope["path"] = self.prefix + scope["path"]
        await self.app(scope, receive, send)


def begins(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(f"{prefix}/")


def check_prefix(prefix: str, paths: Iterable[str]) -> None:
    """Raise StartupError if one of the service's own paths begins with the prefix: nobody could say
    whether it was stripped."""
    if taken := [path for path in paths if begins(path, prefix)]:
        raise StartupError(
            f"the service has the path {taken[0]}, which begins with {prefix}: choose another"
            " HEED_ROOT_PATH"
        )


def prefix_of(scope: Scope) -> str:
    return scope["app"].state.paths.prefix


def path_of(scope: Scope) -> str:
    """Return the path of a request without the prefix, as the service's own routes have it."""
    return scope["path"].removeprefix(prefix_of(scope))
