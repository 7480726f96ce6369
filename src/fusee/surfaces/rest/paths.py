"""Names in paths: they may hold slashes, and what follows a name may be a word of ours.

`/tasks/mail/eu` is the task `mail/eu`, and `/tasks/mail/runs` are the runs of the task `mail`. Who means the
task `mail/runs` writes `/tasks/mail%2Fruns`: an escaped slash is always part of a name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote, unquote

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = [
    "BUSINESS",
    "OF_QUEUE",
    "OF_TASK",
    "OF_WORKER",
    "OF_WORKFLOW",
    "QUEUE",
    "TASK",
    "TEMPLATE",
    "WORKER",
    "WORKFLOW",
    "EscapedSlashes",
    "Mounted",
    "link",
    "path_of",
]

_ESCAPED = "\u2215"
"""Stands for an escaped slash until the route is found; no name can hold it."""


def _name(words: Sequence[str] = (), alone: Sequence[str] = ()) -> Convertor[str]:
    """All that is left of the path, unless it ends in one of these words or is one of those."""
    ends = "|".join([*(f".*/{word}" for word in words), *alone])

    class Name(Convertor[str]):
        regex = f"(?!(?:{ends})$).*" if ends else ".*"

        def convert(self, value: str) -> str:
            return value.replace(_ESCAPED, "/")

        def to_string(self, value: str) -> str:
            return value

    return Name()


def _named(noun: str, parameter: str, words: Sequence[str], alone: Sequence[str] = ()) -> tuple[str, str]:
    """(the path of one, the path of one before a word)."""
    register_url_convertor(noun, _name(words, alone))
    return f"/{{{parameter}:{noun}}}", f"/{{{parameter}:name}}"


register_url_convertor("name", _name())

TASK, OF_TASK = _named(
    "task",
    "task",
    [
        *("runs", "explain", "next", "simulate", "trigger", "restart", "backfill"),
        *("pause", "resume", "enable", "disable", "clear-queue"),
    ],
    alone=["preview", "apply"],
)
WORKFLOW, OF_WORKFLOW = _named("workflow", "workflow", ["runs", "graph", "start"])
TEMPLATE, _ = _named("template", "template", [])
BUSINESS, _ = _named("business", "business", [])
WORKER, OF_WORKER = _named("worker", "name", ["drain"])
QUEUE, OF_QUEUE = _named("queue", "name", ["pause", "resume", "strategy"])


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
