"""Names in paths: they may contain slashes, and a word of a route may follow a name.

`/tasks/mail/eu` is the task `mail/eu`, and `/tasks/mail/runs` are the runs of the task `mail`. To address the
task `mail/runs`, write `/tasks/mail%2Fruns`: an escaped slash is always part of a name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote, unquote

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["EscapedSlashes", "Mounted", "link", "named", "path_of"]

_ESCAPED = "\u2215"
"""Stands for an escaped slash until the route is found; no name can hold it."""


def _convertor(words: Sequence[str] = (), alone: Sequence[str] = ()) -> Convertor[str]:
    """Takes the rest of the path, unless it ends in one of `words` or is one of `alone`."""
    ends = "|".join([*(f".*/{word}" for word in words), *alone])

    class NameConvertor(Convertor[str]):
        regex = f"(?!(?:{ends})$).*" if ends else ".*"

        def convert(self, value: str) -> str:
            return value.replace(_ESCAPED, "/")

        def to_string(self, value: str) -> str:
            return value

    return NameConvertor()


def named(
    noun: str, parameter: str, words: Sequence[str] = (), *, alone: Sequence[str] = ()
) -> tuple[str, str]:
    """(the path of one thing of this noun, the same before one of the noun's `words`).

    A noun lists the words that its routes have behind a name, and those that stand `alone` in its place."""
    register_url_convertor(noun, _convertor(words, alone))
    return f"/{{{parameter}:{noun}}}", f"/{{{parameter}:name}}"


register_url_convertor("name", _convertor())


def path_of(scope: Scope) -> str:
    """The path below the place where the API is mounted: `/api/v1/runs` for `/jobs/api/v1/runs`."""
    path: str = scope["path"]
    root = scope.get("root_path", "")
    return path.removeprefix(root) if root and _is_below(path, root) else path


def link(request: Request, *parts: object) -> str:
    """The path of something from the root of the server, wherever the API is mounted."""
    root = request.scope.get("root_path", "").rstrip("/")
    return "/".join((f"{root}/api/v1", *(quote(str(part), safe=":") for part in parts)))


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root}/")


class Mounted:
    """Makes the path begin with the root path, as ASGI asks and as routing needs.

    It does not where an application with a root path of its own (`FastAPI(root_path="/gw")`, for a proxy that
    removes `/gw`) mounts us: the root path is then `/gw/jobs`, and the path only `/jobs/api/v1/runs`."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        root, outer = scope.get("root_path", ""), scope.get("app_root_path", "")
        if scope["type"] == "http" and outer and not _is_below(scope["path"], root):
            raw = scope.get("raw_path")
            scope = {**scope, "path": outer + scope["path"], "raw_path": raw and outer.encode() + raw}
        await self.app(scope, receive, send)


class EscapedSlashes:
    """Servers unescape the path before we see it, which makes all slashes equal."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path") if scope["type"] == "http" else None
        if raw and b"%2f" in raw.lower():
            marked = re.sub("%2f", _ESCAPED, raw.decode("latin-1"), flags=re.IGNORECASE)
            scope = {**scope, "path": unquote(marked)}
        await self.app(scope, receive, send)
