"""Batches over REST and the command line: from upload to rollback, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fusee import Fusee
from fusee.batches.operation import Target
from fusee.batches.rest.shapes import BatchOut, BatchTaskOut
from fusee.batches.store.queries import TargetFilter
from fusee.values.fields import shown
from tests.chaos.inside import until

BATCHES = "/api/v1/batches"
HEADER = {"batch_name": "brighter", "batch_type": "set", "target_type": "lamp"}


class Lamps:
    """The world that the operation changes."""

    def __init__(self) -> None:
        self.level: dict[str, int] = {}


def register(app: Any, lamps: Lamps) -> None:
    @app.operation("lamp", "set", params=dict[str, int])
    class Set:
        async def finished(self, target: Target) -> bool:
            return lamps.level.get(target.id) == target.after["level"]

        async def capture(self, target: Target) -> dict[str, int]:
            return {"level": lamps.level.get(target.id, 0)}

        async def apply(self, target: Target) -> None:
            if target.after["level"] > 100:
                raise ValueError("too bright")
            lamps.level[target.id] = target.after["level"]

        async def undo(self, target: Target) -> None:
            lamps.level[target.id] = target.image["level"]


@pytest_asyncio.fixture
async def lit(serving: Any) -> AsyncIterator[tuple[Any, Lamps]]:
    lamps = Lamps()
    async with serving() as served:
        register(served.app, lamps)
        async with served.app.running():
            yield served, lamps


def targets(count: int, level: int = 7) -> list[dict[str, Any]]:
    return [{"target_id": str(n), "before": {"level": 0}, "after": {"level": level}} for n in range(count)]


async def created(served: Any, count: int = 5, **fields: Any) -> dict[str, Any]:
    given = {"targets": targets(count), **fields}
    status, body, _ = await served.ask("POST", BATCHES, json={**HEADER, **given})
    assert status == 201, body
    answer: dict[str, Any] = body
    return answer


async def ended(served: Any, batch_id: int, status: str) -> dict[str, Any]:
    async def there() -> Any:
        _, body, _ = await served.ask("GET", f"{BATCHES}/{batch_id}")
        return body if body["phase"] == "done" and body["status"] == status else None

    found: dict[str, Any] = await until(there, 15, f"batch {batch_id} to be {status}")
    return found


async def test_from_plan_to_rollback(lit: tuple[Any, Lamps]) -> None:
    served, lamps = lit
    batch = await created(served)
    assert (batch["phase"], batch["status"], batch["counts"]["pending"]) == ("planned", "pending", 5)
    assert lamps.level == {}, "planning touches nothing"
    _, plan, _ = await served.ask("GET", f"{BATCHES}/{batch['batch_id']}/plan?limit=1")
    assert plan["items"][0]["changes"] == [{"name": "level", "before": 0, "after": 7}]
    assert plan["next_cursor"] is not None
    status, _, _ = await served.ask("POST", f"{BATCHES}/{batch['batch_id']}/apply")
    assert status == 200
    await ended(served, batch["batch_id"], "success")
    assert set(lamps.level.values()) == {7}
    status, _, _ = await served.ask("POST", f"{BATCHES}/{batch['batch_id']}/rollback", json={})
    assert status == 200
    await ended(served, batch["batch_id"], "rollback_success")
    assert set(lamps.level.values()) == {0}
    _, told, _ = await served.ask("GET", f"{BATCHES}/{batch['batch_id']}/recount")
    assert told["equal"]


async def test_a_plan_asks_the_operation(lit: tuple[Any, Lamps]) -> None:
    served, lamps = lit
    lamps.level |= {"0": 7, "1": 3}
    batch = await created(served, 3)
    path = f"{BATCHES}/{batch['batch_id']}/plan"
    status, page, _ = await served.ask("POST", f"{path}?limit=2&timeout=20")
    assert status == 200, page
    assert [(one["target_id"], one["action"], one["changes"]) for one in page["items"]] == [
        ("0", "none", []),
        ("1", "change", [{"name": "level", "before": 3, "after": 7}]),
    ]
    assert page["counts"] == {"none": 1, "change": 1}
    _, page, _ = await served.ask("POST", f"{path}?cursor={page['next_cursor']}")
    assert [one["target_id"] for one in page["items"]] == ["2"] and page["next_cursor"] is None
    for wrong, status in (("timeout=0", 422), ("limit=5000", 422), ("cursor=x", 422)):
        got, _, _ = await served.ask("POST", f"{path}?{wrong}")
        assert got == status or got == 400, wrong
    got, _, _ = await served.ask("POST", f"{BATCHES}/999999/plan")
    assert got == 404


@pytest.mark.parametrize(
    ("body", "wanted", "says"),
    [
        ([], 422, "must be a JSON object with version"),
        ({"version": "x"}, 422, "version must be"),
        ({"versoin": 1}, 422, "did you mean 'version'?"),
        ({"version": 99}, 409, "is at version 1, not 99"),
        ({"version": 1}, 200, None),
        ({}, 200, None),
    ],
)  # fmt: skip
async def test_a_plan_reads_its_body(lit: tuple[Any, Lamps], body: Any, wanted: int, says: str) -> None:
    served, _ = lit
    batch = await created(served, 1)
    status, told, _ = await served.ask("POST", f"{BATCHES}/{batch['batch_id']}/plan", json=body)
    assert status == wanted, told
    assert says is None or says in told["detail"]


async def test_a_batch_that_cannot_be_read_is_told_where_it_is_wrong(lit: tuple[Any, Lamps]) -> None:
    served, _ = lit
    rows = b"target_id,after.level\n1,7\n"
    for kind, query, body, says in (
        ("text/csv", "?batch=xx", rows, "the query parameter batch is not JSON"),
        ("text/csv", '?batch={"targets": []}', rows, "each target has its own line"),
        ("application/x-ndjson", "", b"{]", "line 1: the line is not JSON"),
        ("application/x-ndjson", "", b'{"targets": []}', "each target has its own line"),
        ("application/json", "", json.dumps({**HEADER, "foo": 1, "targets": [1]}), "queue, priority"),
    ):
        headers = {"Content-Type": kind}
        status, told, _ = await served.ask("POST", f"{BATCHES}{query}", data=body, headers=headers)
        assert status in (400, 422) and says in told["detail"], told
    assert told["detail"].endswith(", targets, apply")


async def test_a_plan_that_nobody_can_make_is_refused(served: Any) -> None:
    register(served.app, Lamps())
    batch = await created(served, 2)
    served.app.operations._known.clear()  # as on a server that has no app
    status, told, _ = await served.ask("POST", f"{BATCHES}/{batch['batch_id']}/plan")
    assert (status, "is alive" in told["detail"]) == (409, True)


async def test_targets_may_be_ids_alone(lit: tuple[Any, Lamps]) -> None:
    served, _ = lit

    @served.app.operation("lamp", "blink")
    class Blink:
        async def finished(self, target: Target) -> bool:
            return False

        async def apply(self, target: Target) -> None: ...

        async def undo(self, target: Target) -> None: ...

    batch = await created(served, batch_type="blink", targets=[17, "18", {"target_id": 19}])
    _, page, _ = await served.ask("GET", f"{BATCHES}/{batch['batch_id']}/targets")
    assert [task["target_id"] for task in page["items"]] == ["17", "18", "19"]


async def test_the_older_address_starts_at_once(lit: tuple[Any, Lamps]) -> None:
    served, lamps = lit
    status, body, headers = await served.ask("POST", "/api/batch", json={**HEADER, "targets": targets(2)})
    assert status == 201
    assert headers["Location"] == f"{BATCHES}/{body['batch_id']}"
    await ended(served, body["batch_id"], "success")
    assert lamps.level == {"0": 7, "1": 7}


async def test_lines_and_csv_are_streamed_in(lit: tuple[Any, Lamps]) -> None:
    served, _ = lit
    lines = "\n".join(json.dumps(one) for one in [{**HEADER}, *targets(30)])
    kind = {"Content-Type": "application/x-ndjson"}
    status, body, _ = await served.ask("POST", BATCHES, data=lines, headers=kind)
    assert (status, body["total"]) == (201, 30)
    text = "target_id,target_name,before.level,after.level\n1,hall,0,5\n2,stairs,0,6\n"
    status, body, _ = await served.ask(
        "POST", BATCHES, data=text, headers={"Content-Type": "text/csv"}, params={"batch": json.dumps(HEADER)}
    )
    assert (status, body["total"]) == (201, 2)
    _, page, _ = await served.ask("GET", f"{BATCHES}/{body['batch_id']}/targets")
    assert [(one["target_name"], one["after"]) for one in page["items"]] == [
        ("hall", {"level": 5}),
        ("stairs", {"level": 6}),
    ]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["{"], "ends too early"),
        ([json.dumps(HEADER), "{"], "line 2"),
        ([json.dumps(HEADER), '{"target_id": "1", "after": {"level": "high"}}'], "target 1: after.level"),
        ([json.dumps(HEADER), '{"target_id": "1", "after": {"level": 1}, "afetr": 1}'], "afetr"),
        ([json.dumps(HEADER), *['{"target_id": "a", "after": {"level": 1}}'] * 2], "came before"),
        ([json.dumps(HEADER)], "at least one target"),
        ([json.dumps({**HEADER, "batch_type": "paint"}), '{"target_id": "1"}'], "lamp/set"),
        ([json.dumps({**HEADER, "canery": 1}), '{"target_id": "1"}'], "canery"),
    ],
)  # fmt: skip
async def test_a_bad_upload_says_where_and_leaves_nothing(
    lit: tuple[Any, Lamps], lines: list[str], words: str
) -> None:
    served, _ = lit
    kind = {"Content-Type": "application/x-ndjson"}
    status, body, _ = await served.ask("POST", BATCHES, data="\n".join(lines), headers=kind)
    assert 400 <= status < 500, body
    assert words in body["detail"], body["detail"]
    _, page, _ = await served.ask("GET", BATCHES)
    assert page["items"] == []


async def test_a_repeated_key_answers_the_same_batch(lit: tuple[Any, Lamps]) -> None:
    served, _ = lit
    key = {"Idempotency-Key": "monday"}
    first = await served.ask("POST", BATCHES, json={**HEADER, "targets": targets(2)}, headers=key)
    again = await served.ask("POST", BATCHES, json={**HEADER, "targets": targets(2)}, headers=key)
    assert (first[0], again[0]) == (201, 200)
    assert first[1]["batch_id"] == again[1]["batch_id"]
    status, _, _ = await served.ask(
        "POST", BATCHES, json={**HEADER, "batch_name": "other", "targets": targets(2)}, headers=key
    )
    assert status == 409


async def test_failed_targets_are_listed_and_retried_alone(lit: tuple[Any, Lamps]) -> None:
    served, _ = lit
    some = [*targets(3), {"target_id": "bad", "after": {"level": 101}}]
    batch = await created(served, targets=some, apply=True)
    await ended(served, batch["batch_id"], "partial_fail")
    _, page, _ = await served.ask("GET", f"{BATCHES}/{batch['batch_id']}/targets?status=fail")
    assert [one["target_id"] for one in page["items"]] == ["bad"]
    assert "too bright" in page["items"][0]["info"]
    status, body, _ = await served.ask("POST", f"{BATCHES}/{batch['batch_id']}/retry", json={})
    assert (status, body["retried"]) == (200, 1)
    await ended(served, batch["batch_id"], "partial_fail")


async def test_commands_that_do_not_fit_are_refused(lit: tuple[Any, Lamps]) -> None:
    served, _ = lit
    batch = await created(served)
    path = f"{BATCHES}/{batch['batch_id']}"
    for command, body, status in (
        ("rollback", {}, 409),
        ("apply", {"version": 99}, 409),
        ("cancel", {"reasn": "x"}, 422),
        ("rollback", {"targets": []}, 409),
    ):
        got, answer, _ = await served.ask("POST", f"{path}/{command}", json=body)
        assert got == status or got == 422, (command, got, answer)
    got, _, _ = await served.ask("GET", f"{BATCHES}/999999")
    assert got == 404


async def test_the_command_line_shows_the_same_fields(lit: tuple[Any, Lamps]) -> None:
    served, _ = lit
    batch = await created(served)
    found = await served.app.batches.get(batch["batch_id"])
    assert shown(found).keys() == BatchOut.model_fields.keys()
    (task, *_) = await served.app.batches.tasks(batch["batch_id"], TargetFilter())
    assert shown(task).keys() == BatchTaskOut.model_fields.keys()


def test_the_command_line_from_create_to_cancel(cli: Any, tmp_path: Path) -> None:
    file = tmp_path / "lamps.csv"
    file.write_text("target_id,before.level,after.level\n1,0,5\n2,0,6\n")
    create = ("batch", "create", "evening", "--type", "lamp/set", "--targets", str(file), "--canary", "1")
    assert "no worker knows operation" in cli.refused(*create)
    asyncio.run(_worker_was_here())
    batch = cli.json(*create)
    number = str(batch["batch_id"])
    assert (batch["total"], batch["phase"], batch["created"]) == (2, "planned", True)
    assert "no worker that has operation 'set'" in cli.refused("batch", "plan", number)
    recorded = cli.text("batch", "plan", number, "--recorded")
    assert "level: 0 → 5" in recorded and "action" not in recorded
    assert cli.json("batch", "plan", number, "--recorded")["items"][1]["changes"][0]["after"] == 6
    applied = cli.json("batch", "apply", number)
    assert (applied["phase"], applied["status"]) == ("applying", "pending")
    assert "no live worker serves operation" in applied["waiting"]
    assert cli.json("batch", "cancel", number, "--reason", "wrong lamps")["reason"] == "wrong lamps"
    assert [one["status"] for one in cli.json("batch", "targets", number)["items"]] == ["cancel", "cancel"]
    assert "evening" in cli.text("batch", "list")
    assert cli.json("batch", "list", "--status", "success")["items"] == []
    assert "cancel" in cli.text("batch", "show", number)
    assert "no file" in cli("batch", "create", "x", "--type", "lamp/set", "--targets", "no.csv").output


async def _worker_was_here() -> None:
    """A worker that has the operation registered with the store, and went away."""
    app = Fusee()
    register(app, Lamps())
    async with app:
        session = await app.store.sessions.open_session(app.worker().info, 30)
        await app.store.sessions.end_session(session)


async def test_a_batch_that_does_not_want_to_wait_for_another_is_refused_and_leaves_nothing(
    served: Any,
) -> None:
    register(served.app, Lamps())
    first = await created(served, 3, apply=True)
    body = {**HEADER, "targets": targets(2), "apply": True, "on_conflict": "refuse"}
    status, told, _ = await served.ask("POST", BATCHES, json=body)
    assert (status, f"batch {first['batch_id']} has target '0' too" in told["detail"]) == (409, True)
    _, listed, _ = await served.ask("GET", BATCHES)
    assert [one["batch_id"] for one in listed["items"]] == [first["batch_id"]], "nothing of it is left"
    waits = await created(served, 2, apply=True, on_conflict="wait")
    assert waits["waits_for"] == first["batch_id"]
    assert (waits["on_conflict"], waits["counts"]["pending"]) == ("wait", 2)
    status, told, _ = await served.ask("POST", BATCHES, json={**body, "on_conflict": "fight"})
    assert (status, "wait, refuse" in told["detail"]) == (422, True)
