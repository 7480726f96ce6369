"""The API keeps what its description says: schemathesis asks every route, well and badly."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema
from schemathesis.python.asgi import get_client

from fusee import Fusee
from fusee.access.service import digest
from fusee.batches.operation import Target
from fusee.config import load
from fusee.values.names import check_name
from tests.chaos.inside import until

KEY = "a-long-random-secret"
CLOSE = "/close"
CONFIG = {
    "headers": {"Authorization": f"Bearer {KEY}"},
    "base-url": "http://127.0.0.1",
    "workers": 1,
    "seed": 1,
    "continue-on-failure": True,
    "warnings": False,
    "generation": {"deterministic": True, "max-examples": 5, "no-shrink": True},
    "phases": {"stateful": {"enabled": False}},
    # Not all that makes a request good can be said in a schema: a cron expression, a handler that exists.
    "checks": {"positive_data_acceptance": {"enabled": False}},
}
DESCRIPTION = Fusee("sqlite://").api().openapi()
OPERATIONS = [
    (method, path)
    for path, operations in DESCRIPTION["paths"].items()
    if path.startswith("/api/v1/")
    for method in operations
]
SAME_BODY = (
    ("post", "/api/v1/tasks"),
    ("post", "/api/v1/tasks/apply"),
    ("post", "/api/v1/tasks/preview"),
    ("put", "/api/v1/tasks/{task}"),
    ("put", "/api/v1/workflows/{workflow}"),
)
"""Bodies like those of PATCH and of POST /api/v1/workflows, where the borders of each field are tried."""
THERE = {
    "run_id": 1,
    "task": "nightly",
    "workflow": "there",
    "workflow_run_id": 1,
    "name": "default",
    "batch_id": 1,
    "job_id": 1,
    "business": "crm",
}
"""For each parameter of a path, something that exists."""
NUMBER = count()


class Seeded:
    """The real API over a database with something of everything, opened in the loop that serves it."""

    def __init__(self, folder: Path) -> None:
        self.app = Fusee(
            config=load(
                env={},
                overrides={
                    "database": {"url": f"sqlite:///{folder}/fusee.db"},
                    "api": {"keys": [digest(KEY)], "request_timeout": "20s"},
                },
            )
        )
        self.app.handler("greet")(greet)
        self.app.operation("lamp", "dim")(Dim)
        self.app.bulk("count", item_attempts=1, undo=count)(count)
        self.api: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise RuntimeError("schemathesis would end it with every test, and it lives for all of them")
        if scope["path"] == CLOSE:
            await self.app.close()
        elif self.api is None:
            await self.app.open()
            await seed(self.app)
            self.api = self.app.api()
        await self.api(scope, receive, send)


async def greet(**_: Any) -> str:
    return "hello"


class Dim:
    """An operation of batches that finds all as it should be."""

    async def finished(self, target: Target) -> bool:
        return True

    async def apply(self, target: Target) -> None: ...

    async def undo(self, target: Target) -> None: ...


async def count(item: Any) -> None:
    if item == 3:
        raise ValueError("unlucky")


async def seed(app: Fusee) -> None:
    async with app.running():
        await (await app.enqueue("greet", {"name": "Ada"})).result(timeout=20)
        await app.tasks.create({"name": "nightly", "cron": "0 3 * * *", "handler": "greet"})
        triggered = await app.tasks.trigger("nightly")
        await app.runs.wait(triggered.run_ids[0], timeout=20)
        await app.workflows.create({"name": "there", "nodes": [{"name": "a", "handler": "greet"}]})
        await app.workflows.wait((await app.workflows.start("there")).id, timeout=20)
        header = {"batch_name": "dim", "batch_type": "dim", "target_type": "lamp"}
        batch, _ = await app.batches.create(header, [{"target_id": "a"}, {"target_id": "b"}], apply=True)
        await until(lambda: over(app.batches.get(batch.id), "success"), 20, "the batch to end")
        await app.business_registry.register({"name": "crm", "item": "https://crm.example/mail"})
        fields = {"name": "count", "business": "count", "source": 5}
        job, _ = await app.bulk_jobs.create(fields, data={"a": 1}, start=True)
        await app.bulk_jobs.log(job.id, "counted", who="count")
        await until(lambda: over(app.bulk_jobs.get(job.id), "finished"), 20, "the bulk job to end")


async def over(look: Awaitable[Any], status: str) -> bool:
    return bool((await look).status == status)


@schemathesis.serializer("application/x-ndjson")
def one_a_line(context: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Most requests that could be about anything are about something that exists."""
    if next(NUMBER) % 4 == 3:
        return
    for name, value in case.path_parameters.items():
        if name in THERE and well_formed(value):
            case.path_parameters[name] = THERE[name]


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    seeded = Seeded(tmp_path_factory.mktemp("api"))
    described = schemathesis.openapi.from_asgi(
        "/openapi.json", seeded, config=SchemathesisConfig.from_dict(CONFIG)
    )
    yield described
    get_client(seeded).get(CLOSE)


def well_formed(value: Any) -> bool:
    if isinstance(value, int):
        return 1 <= value < 2**63
    try:
        return bool(check_name(value, "name"))
    except ValueError:
        return False


@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=[f"{m.upper()} {p}" for m, p in OPERATIONS])
def test_every_answer_is_as_described(described: Any, method: str, path: str) -> None:
    described.config.phases.coverage.enabled = (method, path) not in SAME_BODY
    wrong, asked = [], 0
    for event in from_schema(described.include(method=method.upper(), path=path)).execute():
        match event:
            case events.ScenarioFinished(recorder=recorder):
                asked += len(recorder.cases)
                for checks in recorder.checks.values():
                    wrong += [
                        f"{check.failure_info.failure.title}: {check.failure_info.failure.message}\n"
                        f"{check.failure_info.code_sample}"
                        for check in checks
                        if check.failure_info is not None
                    ]
            case events.NonFatalError(value=error) | events.FatalError(exception=error):
                raise error
    assert asked > 0
    assert not wrong, "\n\n".join(wrong[:5])
