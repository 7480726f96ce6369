"""The API keeps what its description says: schemathesis asks every route, well and badly."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.python.asgi import shutdown_lifespans

from fusee import Fusee
from fusee.config import load
from fusee.operations import digest

KEY = "a-long-random-secret"
EXAMPLES = 12


class Seeded:
    """The real API over a database with something of everything, opened in the loop that serves it."""

    def __init__(self, folder: Path) -> None:
        self.app = Fusee(
            config=load(
                env={},
                overrides={
                    "database": {"url": f"sqlite:///{folder}/fusee.db"},
                    "api": {"keys": [digest(KEY)], "request_timeout": "5s"},
                },
            )
        )
        self.app.handler("greet")(greet)
        self.api: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await self.api(scope, receive, send)

    async def _live(self, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
        await receive()
        async with self.app:
            self.api = self.app.api()
            async with self.app.running():
                await seed(self.app)
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})


async def greet(**_: Any) -> str:
    return "hello"


async def seed(app: Fusee) -> None:
    await (await app.enqueue("greet", {"name": "Ada"})).result(timeout=20)
    await app.tasks.create({"name": "nightly", "cron": "0 3 * * *", "handler": "greet"})
    triggered = await app.tasks.trigger("nightly")
    await app.runs.wait(triggered.run_ids[0], timeout=20)


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seeded]:
    yield Seeded(tmp_path_factory.mktemp("api"))
    shutdown_lifespans()


# Only described here; opened, it is when the first test asks.
schema = schemathesis.openapi.from_dict(Fusee("sqlite://").api().openapi())


@schema.include(path_regex="^/api/v1/").parametrize()
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_as_described(case: Any, seeded: Seeded) -> None:
    case.call_and_validate(
        base_url="http://127.0.0.1", headers={"Authorization": f"Bearer {KEY}"}, app=seeded
    )
