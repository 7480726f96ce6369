"""A stage for the tests of the SDK: a running platform, and a record of which methods were called on it."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from aiohttp import web

from fusee import Fusee, RetryPolicy, Run
from fusee.batches.operation import Target
from fusee.observe import log_events
from tests.flow.bulk import bulk_app

__all__ = ["STORIES", "Called", "Stage", "nouns", "on_stage", "story", "until"]

Story = Callable[["Stage", Any], Awaitable[None]]
STORIES: dict[str, Story] = {}
"""By noun (`runs` is `app.runs`): calls every public method on a running platform, and looks at effects."""


def story(noun: str) -> Callable[[Story], Story]:
    def keep(tells: Story) -> Story:
        assert noun not in STORIES
        STORIES[noun] = tells
        return tells

    return keep


def nouns() -> dict[str, type]:
    """The properties of an app that return operations, and their classes."""
    found = {}
    for name, member in inspect.getmembers(Fusee, lambda member: isinstance(member, property)):
        if name.startswith("_"):
            continue
        kind = get_type_hints(member.fget)["return"]
        if getattr(kind, "__module__", "").split(".")[2:3] == ["service"]:
            found[name] = kind
    return found


class Called:
    """Records which methods of a class are called, on every object that `of` was given."""

    def __init__(self, kind: type) -> None:
        public = inspect.getmembers(kind, inspect.isroutine)
        self.uncalled = {name for name, _ in public if not name.startswith("_")}

    def of(self, watched: object) -> Any:
        return _View(watched, self.uncalled)


class _View:
    def __init__(self, watched: object, uncalled: set[str]) -> None:
        self._watched, self._uncalled = watched, uncalled

    def __getattr__(self, name: str) -> Any:
        self._uncalled.discard(name)
        return getattr(self._watched, name)


@dataclass
class Stage:
    app: Fusee
    database: str
    """Its file."""
    service: str
    """The address of a service that answers 202 to everything."""
    asked: asyncio.Queue[tuple[dict[str, str], Any]] = field(default_factory=asyncio.Queue)
    """(headers, body) of what the service was sent."""
    lamps: dict[str, int] = field(default_factory=dict)
    """What batches switch."""
    mailed: list[Any] = field(default_factory=list)
    unmailed: list[Any] = field(default_factory=list)
    hanging: asyncio.Event = field(default_factory=asyncio.Event)
    broken: set[str] = field(default_factory=set)
    """Lamps that cannot be switched, and users whose mail is returned."""

    async def ended(self, *run_ids: int) -> list[Run]:
        return [await self.app.runs.wait(run_id, 30) for run_id in run_ids]


async def until(look: Callable[[], Awaitable[Any]], wanted: Any, seconds: float = 30.0) -> None:
    """Look until it is so."""
    async with asyncio.timeout(seconds):
        while (seen := await look()) != wanted:
            assert not isinstance(seen, Exception)
            await asyncio.sleep(0.01)


@asynccontextmanager
async def on_stage(folder: Path) -> AsyncIterator[Stage]:
    """A worker and a dispatcher in this process, on SQLite, with their log at its default level."""
    asked: asyncio.Queue[tuple[dict[str, str], Any]] = asyncio.Queue()

    async def take(request: web.Request) -> web.Response:
        asked.put_nowait((dict(request.headers), await request.json()))
        return web.json_response({}, status=202 if request.path == "/later" else 200)

    site = web.Application()
    site.router.add_route("*", "/{rest:.*}", take)
    runner = web.AppRunner(site, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    app = bulk_app(
        folder,
        executors={"http": {"allow_private": ["127.0.0.0/8"]}},
        api={"bind_address": "127.0.0.1:0", "public_url": "https://fusee.example"},
        status={"bind_address": "127.0.0.1:0"},
        grpc={"bind_address": "127.0.0.1:0"},
    )
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    stage = Stage(app, str(folder / "fusee.db"), url, asked)
    declare(stage)
    log_events(app.bus, logging.getLogger("fusee"))
    try:
        async with app.running():
            yield stage
    finally:
        await runner.cleanup()


def declare(stage: Stage) -> None:
    app = stage.app

    @app.handler()
    async def greet(name: str = "you") -> str:
        return f"hello {name}"

    @app.handler(retry=RetryPolicy(max_attempts=1))
    async def fail() -> None:
        raise RuntimeError("no luck")

    @app.handler()
    async def hang() -> None:
        stage.hanging.set()
        await asyncio.Event().wait()

    async def unmail(user: int) -> None:
        stage.unmailed.append(user)

    @app.bulk("mail", undo=unmail, item_attempts=1)
    async def mail(user: int) -> None:
        if str(user) in stage.broken:
            raise ValueError("no such user")
        stage.mailed.append(user)

    @app.operation("lamp", "set_level", params=dict[str, int], timeout=20, retry=RetryPolicy(max_attempts=1))
    class SetLevel:
        async def finished(self, target: Target) -> bool:
            return stage.lamps.get(target.id) == target.after["level"]

        async def capture(self, target: Target) -> dict[str, int]:
            return {"level": stage.lamps.get(target.id, 0)}

        async def apply(self, target: Target) -> None:
            if target.id in stage.broken:
                raise RuntimeError("the bulb is broken")
            stage.lamps[target.id] = target.after["level"]

        async def undo(self, target: Target) -> None:
            stage.lamps[target.id] = target.image["level"]
