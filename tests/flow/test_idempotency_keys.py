"""An idempotency key belongs to one request: the same request again gets the same thing, another gets 409."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from fusee.batch import Target
from tests.flow.conftest import Cli, Served

BATCH = {"batch_name": "brighter", "batch_type": "set", "target_type": "lamp"}
LAMPS = [{"target_id": str(n), "after": {"level": 7}} for n in range(3)]
BULK = {"name": "letters", "business": "mail", "source": 10}
LINES = {"Content-Type": "application/x-ndjson"}
CSV = {"Content-Type": "text/csv"}


class Ask(NamedTuple):
    """A request body; `kind` sets the content type where it is not JSON."""

    body: Any = None
    kind: dict[str, str] | None = None
    path: str | None = None
    """Another path than that of the case."""
    query: dict[str, str] | None = None


class Case(NamedTuple):
    path: str
    first: Ask
    same: tuple[Ask, ...]
    """The same request, written in another way."""
    other: tuple[Ask, ...]
    """Other requests: each must be refused."""


def lines(*objects: Any) -> Ask:
    return Ask("\n".join(json.dumps(one) for one in objects), LINES)


def csv(*rows: str, **batch: Any) -> Ask:
    return Ask("\n".join(rows), CSV, query={"batch": json.dumps({**BATCH, **batch})})


RUN = {"handler": "greet", "payload": {"name": "Ada", "n": 1}}
TRIGGER = "/api/v1/tasks/t/trigger"
START = "/api/v1/workflows/w/start"

CASES = {
    "a run": Case(
        "/api/v1/runs",
        Ask(RUN),
        (Ask({"payload": {"n": 1, "name": "Ada"}, "handler": "greet", "priority": 0}),),
        (
            Ask({**RUN, "payload": {"name": "Bob"}}),
            Ask({**RUN, "priority": 5}),
            Ask({**RUN, "delay": 60}),
            Ask({**RUN, "due_at": "2030-01-01T00:00:00Z"}),
            Ask({**RUN, "queue": "slow"}),
            Ask({**RUN, "timeout": 5}),
            Ask([RUN]),
            lines(RUN),
        ),
    ),
    "an array of runs": Case(
        "/api/v1/runs",
        Ask([RUN, RUN]),
        (Ask([{**RUN, "queue": "default"}, RUN]),),
        (Ask([RUN]), Ask([RUN, RUN, RUN]), Ask([RUN, {**RUN, "priority": 1}]), Ask(RUN), lines(RUN, RUN)),
    ),
    "a stream of runs": Case(
        "/api/v1/runs",
        lines(RUN, RUN),
        (lines({"payload": {"n": 1, "name": "Ada"}, "handler": "greet"}, RUN),),
        (lines(RUN, {**RUN, "priority": 1}), Ask([RUN, RUN]), Ask(RUN)),
    ),
    "a batch": Case(
        "/api/v1/batches",
        Ask({**BATCH, "targets": LAMPS}),
        (
            Ask({**BATCH, "concurrency": 32, "targets": [{**one, "target_name": ""} for one in LAMPS]}),
            lines(BATCH, *LAMPS),
            csv("target_id,after.level", "0,7", "1,7", "2,7"),
        ),
        (
            Ask({**BATCH, "targets": LAMPS[:2]}),
            Ask({**BATCH, "targets": [*LAMPS, {"target_id": "3", "after": {"level": 7}}]}),
            Ask({**BATCH, "targets": [*LAMPS[:2], {"target_id": "2", "after": {"level": 8}}]}),
            Ask({**BATCH, "targets": LAMPS[::-1]}),
            Ask({**BATCH, "canary": 1, "targets": LAMPS}),
            Ask({**BATCH, "apply": True, "targets": LAMPS}),
            lines(BATCH, *LAMPS[:2]),
            lines({**BATCH, "env": "live"}, *LAMPS),
            csv("target_id,after.level", "0,7", "1,7", "2,9"),
            Ask({**BATCH, "targets": LAMPS}, path="/api/batch"),
        ),
    ),
    "a bulk job": Case(
        "/api/v1/bulk-jobs",
        Ask({**BULK, "data": {"a": 1}}),
        (Ask({"data": {"a": 1}, **BULK}),),
        (
            Ask({**BULK, "source": 11, "data": {"a": 1}}),
            Ask({**BULK, "data": {"a": 2}}),
            Ask(BULK),
            Ask({**BULK, "data": {"a": 1}, "start": True}),
        ),
    ),
    "a workflow start": Case(
        START,
        Ask({"params": {"day": 1}}),
        (Ask({"params": {"day": 1}}),),
        (Ask({"params": {"day": 2}}), Ask(), Ask({"params": {"day": 1}}, path="/api/v1/workflows/v/start")),
    ),
    "a trigger": Case(
        TRIGGER,
        Ask({"payload": {"name": "Ada"}}),
        (Ask({"payload": {"name": "Ada"}}),),
        (
            Ask({"payload": {"name": "Bob"}}),
            Ask(),
            Ask({"payload": {"name": "Ada"}, "reason": "because"}),
            Ask({"payload": {"name": "Ada"}}, path="/api/v1/tasks/u/trigger"),
            Ask(RUN, path="/api/v1/runs"),
        ),
    ),
    "a backfill": Case(
        "/api/v1/tasks/c/backfill",
        Ask({"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T02:30:00Z"}),
        (Ask({"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T02:30:00Z", "concurrency": 1}),),
        (
            Ask({"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T05:30:00Z"}),
            Ask({"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T02:30:00Z", "concurrency": 2}),
        ),
    ),
}


@pytest_asyncio.fixture
async def office(serving: Any, database_url: str) -> AsyncIterator[Served]:
    """Nothing executes: what is made stays as it was made."""
    async with serving(database={"url": database_url}) as served:

        @served.app.operation("lamp", "set", params=dict[str, int])
        class Set:
            async def finished(self, target: Target) -> bool:
                return False

            async def apply(self, target: Target) -> None: ...

            async def undo(self, target: Target) -> None: ...

        @served.app.bulk("mail")
        async def mail(item: Any) -> None: ...

        for name in ("t", "u"):
            task = {"name": name, "handler": "greet"}
            assert (await served.ask("POST", "/api/v1/tasks", json=task))[0] == 201
        task = {"name": "c", "handler": "greet", "cron": "0 0 * * * *"}
        assert (await served.ask("POST", "/api/v1/tasks", json=task))[0] == 201
        for name in ("v", "w"):
            flow = {
                "name": name,
                "nodes": [{"name": "a", "handler": "greet"}],
                "params": {"day": {"default": 0}},
            }
            status, body, _ = await served.ask("POST", "/api/v1/workflows", json=flow)
            assert status == 201, body
        yield served


async def send(served: Served, case: Case, ask: Ask, key: str = "k") -> tuple[int, Any]:
    headers = {"Idempotency-Key": key, **(ask.kind or {})}
    sent: dict[str, Any] = {"data": ask.body} if ask.kind else {} if ask.body is None else {"json": ask.body}
    status, body, _ = await served.ask(
        "POST", ask.path or case.path, headers=headers, params=ask.query or {}, **sent
    )
    return status, body


def named(body: Any) -> Any:
    """What identifies the thing that was made."""
    if isinstance(body, list):
        return [one["id"] for one in body]
    for name in ("batch_id", "run_ids", "first_id", "id"):
        if name in body:
            return body[name]
    raise AssertionError(body)


async def made(served: Served) -> list[Any]:
    """All that was made."""
    found: list[Any] = [await served.count()]
    for path in ("batches", "bulk-jobs", "workflow-runs"):
        _, body, _ = await served.ask("GET", f"/api/v1/{path}")
        found.append(sorted(named(one) for one in body["items"]))
    return found


@pytest.mark.parametrize("what", CASES)
async def test_a_used_key_is_refused_for_another_request(office: Served, what: str) -> None:
    case = CASES[what]
    status, first = await send(office, case, case.first)
    assert status == 201, first
    before = await made(office)
    for ask in (case.first, *case.same):
        status, body = await send(office, case, ask)
        assert status in (200, 201), (ask, body)
        assert named(body) == named(first), ask
    for ask in case.other:
        status, body = await send(office, case, ask)
        assert status == 409, (ask, body)
        assert "idempotency key" in body["detail"] and "use a new" in body["detail"], (ask, body)
    assert await made(office) == before, "what is refused leaves nothing"
    status, body = await send(office, case, case.other[0], key="another key")
    assert status == 201, body


async def test_a_key_of_its_own_in_an_array_is_not_bound_to_the_array(office: Served) -> None:
    """Files of runs with keys of their own are submitted in portions of any size."""
    case = CASES["a run"]
    own = [{**RUN, "idempotency_key": f"own-{n}"} for n in range(3)]
    _, first, _ = await office.ask("POST", case.path, json=own)
    status, again, _ = await office.ask("POST", case.path, json=own[:2])
    assert (status, named(again)) == (201, named(first)[:2])


async def test_keys_like_those_of_an_array_may_be_given_one_by_one(office: Served) -> None:
    case = CASES["a run"]
    for key in ("k/0", "k"):
        status, body = await send(office, case, Ask(RUN), key=key)
        assert status == 201, body


async def test_the_sdk_refuses_it_as_well(office: Served) -> None:
    from fusee.errors import Conflict

    app = office.app
    first, new = await app.batches.create(BATCH, LAMPS, idempotency_key="k")
    assert new
    assert (await app.batches.create(BATCH, LAMPS, idempotency_key="k")) == (first, False)
    with pytest.raises(Conflict, match="idempotency key"):
        await app.batches.create(BATCH, LAMPS[:1], idempotency_key="k")


def test_the_command_line_refuses_it_as_well(cli: Cli) -> None:
    cli.text("db", "upgrade")
    cli.json("task", "create", "t", "--handler", "greet", "--allow-unknown", "--at", "+1h")
    first = cli.json("task", "trigger", "t", "--key", "k", "--payload", '{"a": 1}')
    again = cli.json("task", "trigger", "t", "--key", "k", "--payload", '{"a": 1}')
    assert again["run_ids"] == first["run_ids"]
    told = cli.refused("task", "trigger", "t", "--key", "k", "--payload", '{"a": 2}')
    assert "idempotency key" in told
