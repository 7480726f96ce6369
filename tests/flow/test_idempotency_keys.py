"""An idempotency key belongs to one request: the same request again gets the same thing, another gets 409."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from fusee import Fusee
from fusee.batches.operation import Target
from fusee.errors import StoreUnavailable
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


DEFINITIONS = {
    "a task": Case(
        "/api/v1/tasks",
        Ask({"name": "new", "handler": "greet", "cron": "0 3 * * *"}),
        (Ask({"name": "new", "handler": "greet", "cron": "0 3 * * *", "timezone": "UTC"}),),
        (
            Ask({"name": "newer", "handler": "greet", "cron": "0 3 * * *"}),
            Ask({"name": "new", "handler": "greet", "cron": "0 4 * * *"}),
            Ask({"name": "new", "handler": "greet", "cron": "0 3 * * *", "enabled": False}),
        ),
    ),
    "a workflow": Case(
        "/api/v1/workflows",
        Ask({"name": "new", "nodes": [{"name": "a", "handler": "greet"}]}),
        (Ask({"nodes": [{"handler": "greet", "name": "a"}], "name": "new"}),),
        (
            Ask({"name": "newer", "nodes": [{"name": "a", "handler": "greet"}]}),
            Ask({"name": "new", "nodes": [{"name": "b", "handler": "greet"}]}),
        ),
    ),
    "a template": Case(
        "/api/v1/task-templates",
        Ask({"name": "new", "task": {"handler": "greet"}}),
        (Ask({"task": {"handler": "greet"}, "name": "new"}),),
        (
            Ask({"name": "newer", "task": {"handler": "greet"}}),
            Ask({"name": "new", "task": {"handler": "hang"}}),
        ),
    ),
    "a business": Case(
        "/api/v1/businesses",
        Ask({"name": "new", "item": "https://crm.example/mail"}),
        (Ask({"item": "https://crm.example/mail", "name": "new"}),),
        (
            Ask({"name": "newer", "item": "https://crm.example/mail"}),
            Ask({"name": "new", "item": "https://crm.example/other"}),
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


@pytest.mark.parametrize("what", DEFINITIONS)
async def test_a_definition_is_made_once_under_a_key(office: Served, what: str) -> None:
    case = DEFINITIONS[what]
    status, first = await send(office, case, case.first)
    assert status == 201, first
    for ask in (case.first, *case.same):
        status, body = await send(office, case, ask)
        assert (status, body) == (200, first), ask
    for ask in case.other:
        status, body = await send(office, case, ask)
        assert (status, "idempotency key 'k' was used" in body["detail"]) == (409, True), (ask, body)
    status, body = await send(office, case, case.other[0], key="another key")
    assert status == 201, body


def test_every_route_that_creates_takes_an_idempotency_key() -> None:
    description = Fusee("sqlite://").api().openapi()
    for path, methods in description["paths"].items():
        post = methods.get("post")
        if post is None or not post["responses"].keys() & {"201"}:
            continue
        names = {one["name"].lower() for one in post.get("parameters", ())}
        assert "idempotency-key" in names, f"POST {path} creates, and takes no Idempotency-Key"


async def test_a_run_is_retried_once_under_a_key(office: Served) -> None:
    _, run, _ = await office.ask("POST", "/api/v1/runs", json=RUN)
    _, other, _ = await office.ask("POST", "/api/v1/runs", json=RUN)
    for one in (run, other):
        await office.ask("POST", f"/api/v1/runs/{one['id']}/cancel")
    key = {"Idempotency-Key": "again"}
    path = f"/api/v1/runs/{run['id']}/retry"
    status, first, _ = await office.ask("POST", path, headers=key)
    assert status == 201
    status, again, _ = await office.ask("POST", path, headers=key)
    assert (status, again["id"], again["created"]) == (200, first["id"], False)
    status, refused, _ = await office.ask("POST", f"/api/v1/runs/{other['id']}/retry", headers=key)
    assert status == 409 and "used for another request" in refused["detail"]
    assert await office.count() == 3


async def test_a_fire_is_done_again_once_under_a_key(office: Served) -> None:
    _, fired, _ = await office.ask("POST", TRIGGER)
    (run_id,) = fired["run_ids"]
    await office.ask("POST", f"/api/v1/runs/{run_id}/cancel")
    key = {"Idempotency-Key": "again"}
    status, first, _ = await office.ask("POST", f"/api/v1/runs/{run_id}/retry", headers=key)
    assert status == 201, first
    status, again, _ = await office.ask("POST", f"/api/v1/runs/{run_id}/retry", headers=key)
    assert (status, again["id"], again["created"]) == (200, first["id"], False)


async def test_a_log_line_is_written_once_under_a_key(office: Served) -> None:
    _, job, _ = await office.ask("POST", "/api/v1/bulk-jobs", json=BULK)
    path, key = f"/api/v1/bulk-jobs/{job['id']}/logs", {"Idempotency-Key": "k"}
    _, first, _ = await office.ask("POST", path, json={"text": "one"}, headers=key)
    status, again, _ = await office.ask("POST", path, json={"text": "one"}, headers=key)
    assert (status, again) == (201, first)
    status, _, _ = await office.ask("POST", path, json={"text": "two"}, headers=key)
    assert status == 409
    _, page, _ = await office.ask("GET", f"{path}?kind=data")
    assert len(page["items"]) == 1


async def test_an_api_key_is_made_once_under_a_key(office: Served) -> None:
    """Its secret is not stored, so a repeat cannot show it; it must not make a second key either."""
    headers = {"Idempotency-Key": "k"}
    status, first, _ = await office.ask(
        "POST", "/api/v1/keys", json={"name": "ci", "role": "admin"}, headers=headers
    )
    assert status == 201
    headers["Authorization"] = f"Bearer {first['key']}"
    status, told, _ = await office.ask(
        "POST", "/api/v1/keys", json={"name": "ci", "role": "admin"}, headers=headers
    )
    assert status == 409 and f"API key {first['id']} was made" in told["detail"]
    _, page, _ = await office.ask("GET", "/api/v1/keys", headers=headers)
    assert len(page["items"]) == 1


async def test_failed_targets_are_tried_again_once_under_a_key(office: Served) -> None:
    """The second request must not try again what failed once more since the first."""
    batch, _ = await office.app.batches.create(BATCH, LAMPS, apply=True)
    await office.app.batches.cancel(batch.id)
    await office.app.store.aggregation.aggregate()
    path, key = f"/api/v1/batches/{batch.id}/retry", {"Idempotency-Key": "k"}
    status, first, _ = await office.ask("POST", path, json={"canceled": True}, headers=key)
    assert (status, first["retried"]) == (200, 3)
    await office.app.batches.cancel(batch.id)
    await office.app.store.aggregation.aggregate()
    status, again, _ = await office.ask("POST", path, json={"canceled": True}, headers=key)
    assert (status, again["retried"], again["batch"]["phase"]) == (200, 3, "done")
    status, _, _ = await office.ask("POST", path, json={"canceled": False}, headers=key)
    assert status == 409


class LostReplies:
    """The n-th write from now on is done, and its reply is lost; then the database is away for a while."""

    def __init__(self, store: Any, nth: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, self.away = nth, False
        write = store.database.write

        async def lossy(work: Any) -> Any:
            if self.away:
                raise StoreUnavailable("the database is away")
            done = await write(work)
            self.left -= 1
            if self.left == 0:
                self.away = True
                raise StoreUnavailable("the reply was lost")
            return done

        monkeypatch.setattr(store.database, "write", lossy)


async def test_a_batch_whose_reply_was_lost_is_got_by_the_repeat_at_once(
    office: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it was lost: while the upload was opened, filled, completed or applied."""
    body = {**BATCH, "targets": LAMPS, "apply": True}
    for nth in range(1, 6):
        headers = {"Idempotency-Key": f"lost-{nth}"}
        with monkeypatch.context() as patch:
            lost = LostReplies(office.app.store, nth, patch)
            status, _, _ = await office.ask("POST", "/api/v1/batches", json=body, headers=headers)
        if not lost.away:
            assert status == 201 and nth == 5
            break
        assert status == 503
        status, batch, _ = await office.ask("POST", "/api/v1/batches", json=body, headers=headers)
        assert status in (200, 201), (nth, batch)
        assert (batch["total"], batch["phase"]) == (3, "applying")
        _, page, _ = await office.ask("GET", "/api/v1/batches")
        assert len(page["items"]) == nth, "one batch a key"


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
