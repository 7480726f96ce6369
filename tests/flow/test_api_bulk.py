"""Bulk jobs over REST: from creation to undo, what is refused, and what a business may do."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fusee import BulkContext, SelfStart
from fusee.access.service import KeyOperations, digest
from tests.chaos.inside import until

JOBS = "/api/v1/bulk-jobs"
WORKER = {"poll_interval": 0.05}


class World:
    """What the business of these tests does, and with what."""

    def __init__(self) -> None:
        self.done: list[tuple[int, Any]] = []
        self.undone: list[int] = []
        self.bad: set[Any] = set()
        self.gate = asyncio.Event()
        self.gate.set()

    def register(self, app: Any) -> None:
        async def undo(item: Any, index: int) -> None:
            self.undone.append(index)

        async def later(job: BulkContext) -> SelfStart:
            return SelfStart()

        @app.bulk("mail", undo=undo, item_attempts=1)
        async def mail(item: Any, index: int) -> None:
            await self.gate.wait()
            if item in self.bad:
                raise ValueError(f"no such user {item}")
            self.done.append((index, item))

        @app.bulk("own", before_run=later)
        async def own(item: Any, job: BulkContext) -> None:
            self.done.append((item, job.data))


@pytest_asyncio.fixture
async def office(serving: Any) -> AsyncIterator[tuple[Any, World]]:
    world = World()
    async with serving(worker=WORKER) as served:
        served.app.bulk_server.beat = 0.05
        world.register(served.app)
        async with served.app.running():
            yield served, world


async def created(served: Any, **fields: Any) -> dict[str, Any]:
    body = {"name": "letters", "business": "mail", "source": 10, **fields}
    status, answer, headers = await served.ask("POST", JOBS, json=body)
    assert status == 201, answer
    assert headers["Location"] == f"{JOBS}/{answer['id']}"
    made: dict[str, Any] = answer
    return made


async def become(served: Any, job_id: int, status: str) -> dict[str, Any]:
    async def there() -> Any:
        _, body, _ = await served.ask("GET", f"{JOBS}/{job_id}")
        return body if body["status"] == status else None

    found: dict[str, Any] = await until(there, 20, f"bulk job {job_id} to be {status}")
    return found


async def test_from_creation_to_the_end(office: tuple[Any, World]) -> None:
    served, world = office
    hook = "https://ops.example/bulk"
    job = await created(served, source=["ada", "bob"], data={"subject": "hello"}, creator="eve", alerts=hook)
    assert job["alerts"] == {"webhook": hook, "on_failure": True, "on_stalled": True}
    assert (job["status"], job["total"], job["data"]) == ("created", None, {"subject": "hello"})
    assert job["source"] == {"kind": "list", "count": 2}
    status, job, _ = await served.ask("POST", f"{JOBS}/{job['id']}/start")
    assert (status, job["status"]) == (200, "running")
    job = await become(served, job["id"], "finished")
    assert (job["total"], job["done"], job["progress"], job["eta_seconds"]) == (2, 2, 1.0, None)
    assert [(one["first"], one["stop"], one["state"]) for one in job["segments"]] == [(0, 2, "done")]
    assert sorted(world.done) == [(0, "ada"), (1, "bob")]
    _, page, _ = await served.ask("GET", f"{JOBS}/{job['id']}/logs?kind=operator")
    assert [(one["who"], one["text"]) for one in page["items"]] == [
        ("local", "created"),
        ("local", "started"),
    ]


async def test_a_job_at_rest_is_deleted(office: tuple[Any, World]) -> None:
    served, _ = office
    job = await created(served, source=1_000_000, rate=20, start=True)
    path = f"{JOBS}/{job['id']}"
    status, problem, _ = await served.ask("DELETE", path)
    assert status == 409 and "stop it before you delete it" in problem["detail"]
    await served.ask("POST", f"{path}/stop")
    await become(served, job["id"], "stopped")
    status, _, _ = await served.ask("DELETE", path, headers={"If-Match": '"1"'})
    assert status in (409, 412)
    status, _, _ = await served.ask("DELETE", path)
    assert status == 204
    for method, where in (
        ("GET", path),
        ("DELETE", path),
        ("GET", f"{path}/logs"),
        ("POST", f"{path}/resume"),
    ):
        status, _, _ = await served.ask(method, where)
        assert status == 404, (method, where)


@pytest.mark.parametrize(("halt", "go_on"), [("stop", "resume"), ("pause", "start")])
async def test_stopped_adjusted_and_resumed(office: tuple[Any, World], halt: str, go_on: str) -> None:
    served, world = office
    job = await created(served, source=1_000_000, rate=200, start=True)
    path = f"{JOBS}/{job['id']}"
    await until(lambda: _ended(served, path), 20, "items to be done")
    status, problem, _ = await served.ask("PUT", f"{path}/data", json={"data": 1})
    assert status == 409 and "stop it before you change its data" in problem["detail"]
    status, _, _ = await served.ask("POST", f"{path}/{halt}", json={"reason": "lunch"})
    assert status == 200
    stopped = await become(served, job["id"], "stopped")
    assert stopped["reason"] == "lunch"
    status, changed, _ = await served.ask("PUT", f"{path}/data", json={"data": {"n": 1}})
    assert (status, changed["data"]) == (200, {"n": 1})
    body = {"rate": "unlimited", "concurrency": 4, "window": 500}
    status, changed, _ = await served.ask("POST", f"{path}/rate", json=body)
    assert (status, changed["rate"], changed["concurrency"], changed["window"]) == (200, "unlimited", 4, 500)
    status, problem, _ = await served.ask("POST", f"{path}/rate", json={"rate": 1, "version": 1})
    assert status == 409 and "version" in problem["detail"]
    status, _, _ = await served.ask("POST", f"{path}/{go_on}", json={})
    assert status == 200
    await until(lambda: _ended(served, path, stopped["ended"]), 20, "it to go on where it was")
    await served.ask("POST", f"{path}/stop")
    after = await become(served, job["id"], "stopped")
    assert len(world.done) == after["ended"], "an item was done twice, or is not on record"
    _, undo, _ = await served.ask("POST", f"{path}/undo")
    assert (undo["rate"], undo["concurrency"], undo["window"]) == ("unlimited", 4, 500), "as changed"


async def test_a_job_is_changed_in_part_while_it_runs(office: tuple[Any, World]) -> None:
    served, _ = office
    job = await created(served, source=1_000_000, rate=20, error_budget=5, start=True)
    path, hook = f"{JOBS}/{job['id']}", "https://ops.example/bulk"

    async def change(status: int, body: dict[str, Any], **headers: str) -> dict[str, Any]:
        found, answer, _ = await served.ask("PATCH", path, json=body, headers=headers)
        assert found == status, answer
        changed: dict[str, Any] = answer
        return changed

    changed = await change(200, {"alerts": hook})
    assert changed["alerts"] == {"webhook": hook, "on_failure": True, "on_stalled": True}
    assert (changed["rate"], changed["error_budget"]) == (20, 5), "what is not named stays"
    changed = await change(200, {"alerts": {"on_stalled": False}, "rate": 30})
    assert changed["alerts"] == {"webhook": hook, "on_failure": True, "on_stalled": False}, "merged"
    assert changed["rate"] == 30
    problem = await change(409, {"alerts": {"on_failure": False}, "version": 1})
    assert "version" in problem["detail"]
    await change(409, {"rate": 1}, **{"If-Match": '"1"'})
    problem = await change(409, {"item_attempts": 9})
    assert "stop it before you change its item_attempts" in problem["detail"]
    for body, why in (
        ({"alerts": "ftp://x"}, "alerts.webhook must be the http or https address"),
        ({"alerts": {"on_success": True}}, "alerts has no 'on_success'"),
        ({}, "give a rate"),
        ({"name": "other"}, "name"),
    ):
        assert why in str(await change(422, body)), body
    changed = await change(200, {"alerts": None, "rate": None, "error_budget": None, "concurrency": None})
    assert (changed["alerts"], changed["rate"], changed["concurrency"]) == (None, "unlimited", 32)
    assert changed["error_budget"] is None
    problem = await change(422, {"alerts": {"on_stalled": False}})
    assert "alerts.webhook" in str(problem), "there is none to keep"
    await served.ask("POST", f"{path}/stop")
    await become(served, job["id"], "stopped")


async def _ended(served: Any, path: str, more_than: int = 0) -> bool:
    _, body, _ = await served.ask("GET", path)
    return bool(body["ended"] > more_than)


async def test_the_quarantine_is_listed_downloaded_and_run_again_with_its_indexes(
    office: tuple[Any, World],
) -> None:
    served, world = office
    world.bad = {"b", "d", "e"}
    job = await created(served, source=list("abcdef"), start=True)
    path = f"{JOBS}/{job['id']}"
    await become(served, job["id"], "finished")
    _, page, _ = await served.ask("GET", f"{path}/quarantine?limit=2")
    assert [(one["index"], one["item"], one["error"]) for one in page["items"]] == [
        (1, '"b"', "ValueError: no such user b"),
        (3, '"d"', "ValueError: no such user d"),
    ]
    _, rest, _ = await served.ask("GET", f"{path}/quarantine?limit=2&cursor={page['next_cursor']}")
    assert ([one["index"] for one in rest["items"]], rest["next_cursor"]) == ([4], None)
    _, text, headers = await served.ask("GET", f"{path}/quarantine/download?format=csv")
    assert headers["Content-Type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["index"], row["item"], row["attempts"]) for row in rows] == [
        ("1", '"b"', "1"),
        ("3", '"d"', "1"),
        ("4", '"e"', "1"),
    ]
    async with served.client.get(f"{path}/quarantine/download") as answer:
        assert answer.headers["Content-Type"] == "application/x-ndjson"
        assert [json.loads(line)["index"] for line in (await answer.text()).splitlines()] == [1, 3, 4]

    world.bad, world.done = {"d"}, []
    key = {"Idempotency-Key": "again"}
    status, again, headers = await served.ask(
        "POST", f"{path}/quarantine/rerun", json={"start": True, "concurrency": 1}, headers=key
    )
    assert (status, headers["Location"]) == (201, f"{JOBS}/{again['id']}")
    await become(served, again["id"], "finished")
    assert world.done == [(1, "b"), (4, "e")], "an item keeps the index of the job that it came from"
    _, page, _ = await served.ask("GET", f"{JOBS}/{again['id']}/quarantine")
    assert [(one["index"], one["position"]) for one in page["items"]] == [(3, 1)]
    _, same, _ = await served.ask(
        "POST", f"{path}/quarantine/rerun", json={"start": True, "concurrency": 1}, headers=key
    )
    assert same["id"] == again["id"]

    world.bad, world.done = set(), []
    _, third, _ = await served.ask(
        "POST", f"{JOBS}/{again['id']}/quarantine/rerun", json={"start": True, "name": "third"}
    )
    third = await become(served, third["id"], "finished")
    assert (world.done, third["name"]) == ([(3, "d")], "third")


async def test_undo_runs_backwards_with_the_indexes_of_the_job(office: tuple[Any, World]) -> None:
    served, world = office
    world.bad = {12}
    job = await created(served, source={"kind": "range", "start": 10, "stop": 15}, start=True)
    await become(served, job["id"], "finished")
    status, undo, _ = await served.ask(
        "POST", f"{JOBS}/{job['id']}/undo", json={"start": True, "concurrency": 1}
    )
    assert (status, undo["undo_of"]) == (201, job["id"])
    await become(served, undo["id"], "finished")
    assert world.undone == [14, 13, 11, 10]


async def test_a_business_starts_its_job_itself_and_writes_to_its_log(office: tuple[Any, World]) -> None:
    served, world = office
    job = await created(served, business="own", source=3, start=True)
    path = f"{JOBS}/{job['id']}"
    await become(served, job["id"], "waiting_business")
    status, _, _ = await served.ask("PUT", f"{path}/data", json={"data": "v2"})
    assert status == 200
    status, told, _ = await served.ask("POST", f"{path}/logs", json={"text": "downloaded 3 rows"})
    assert status == 201
    status, _, _ = await served.ask("POST", f"{path}/start", json={"by_business": True})
    assert status == 200
    await become(served, job["id"], "finished")
    assert sorted(world.done) == [(0, "v2"), (1, "v2"), (2, "v2")]
    _, page, _ = await served.ask("GET", f"{path}/logs?kind=data")
    assert [(one["id"], one["text"]) for one in page["items"]] == [(told["id"], "downloaded 3 rows")]
    status, problem, _ = await served.ask("POST", f"{path}/start", json={"by_business": True})
    assert status == 409 and "while it waits for that" in problem["detail"]


async def test_pages_and_filters(office: tuple[Any, World]) -> None:
    served, _ = office
    ids = [(await created(served, name=f"n{n}"))["id"] for n in range(5)]
    _, page, _ = await served.ask("GET", f"{JOBS}?limit=2")
    _, second, _ = await served.ask("GET", f"{JOBS}?limit=2&cursor={page['next_cursor']}")
    assert [one["id"] for one in page["items"] + second["items"]] == ids[:0:-1][:4]
    for query, found in (
        ("name=n3", [ids[3]]),
        ("status=running", []),
        ("business=own", []),
        ("status=created&status=running&business=mail", ids[::-1]),
    ):
        _, page, _ = await served.ask("GET", f"{JOBS}?{query}")
        assert [one["id"] for one in page["items"]] == found, query


async def test_a_repeated_key_answers_the_same_job(office: tuple[Any, World]) -> None:
    served, _ = office
    key = {"Idempotency-Key": "monday"}
    body = {"name": "m", "business": "mail", "source": 3}
    first = await served.ask("POST", JOBS, json=body, headers=key)
    again = await served.ask("POST", JOBS, json=body, headers=key)
    assert (first[0], again[0], first[1]["id"]) == (201, 200, again[1]["id"])
    status, _, _ = await served.ask("POST", JOBS, json={**body, "source": 4}, headers=key)
    assert status == 409


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"business": "male"}, "known are: mail, own"),
        ({"source": {"kind": "tape"}}, "there are"),
        ({"source": {"kind": "file", "path": "/etc/passwd"}}, "executors.bulk.folders"),
        ({"source": {"kind": "sql", "url": "env:CRM", "query": "SELECT 1"}}, "executors.bulk.databases"),
        ({"source": {"kind": "done", "job": 1, "source": {"kind": "range", "stop": 1}}}, "undoing a job"),
        ({"source": {"kind": "url", "url": "http://127.0.0.1/x"}}, "not a public address"),
        ({"concurrency": 0}, "concurrency"),
        ({"rate": 0.0001}, "rate must be"),
        ({"rate": 0}, "say unlimited for no cap, or hold to start nothing for now"),
        ({"error_budget": "lots"}, "error_budget"),
        ({"alerts": "ftp://x"}, "alerts.webhook must be the http or https address to post to"),
        ({"item_timeout": 0}, "item_timeout must be from 0.1 s to 7 days, or: none"),
        ({"item_timeout": "soon"}, "item_timeout"),
        ({"spede": 1}, "spede"),
        ({"rate": "fast"}, "rate must be items per second, or unlimited, or hold, not 'fast'"),
        ({"rate": []}, "rate must be items per second, or unlimited, or hold"),
        ({"source": "abc"}, "source must be a number, a list, or an object"),
        ({"source": True}, "source must be a number, a list, or an object"),
        ({"source": None}, "source is missing"),
        ({"source": {"kind": "zzz"}}, "there are file, list, range, sql, url"),
        ({"error_budget": []}, "error_budget must be a whole number, or a share of the items"),
        ({"name": ""}, "name must be 1 to 200 printable characters"),
        ({"name": "n" * 201}, "name must be 1 to 200 printable characters"),
    ],
)  # fmt: skip
async def test_what_makes_no_sense_is_refused_and_leaves_nothing(
    office: tuple[Any, World], fields: dict[str, Any], words: str
) -> None:
    served, _ = office
    body = {"name": "m", "business": "mail", "source": 3, **fields}
    status, problem, headers = await served.ask("POST", JOBS, json=body)
    assert status == 422 and words in problem["detail"], problem
    assert headers["Content-Type"] == "application/problem+json"
    _, page, _ = await served.ask("GET", JOBS)
    assert page["items"] == []


async def test_files_of_open_folders_can_be_read_over_the_api(serving: Any, tmp_path: Path) -> None:
    world, folder = World(), tmp_path / "open"
    folder.mkdir()
    (folder / "users.txt").write_text("ada\nbob\n")
    (tmp_path / "secret.txt").write_text("key\n")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    async with serving(worker=WORKER, executors={"bulk": {"folders": [str(folder)]}}) as served:
        world.register(served.app)
        async with served.app.running():
            source = {"kind": "file", "path": str(folder / "users.txt")}
            job = await created(served, source=source, start=True)
            await become(served, job["id"], "finished")
            extend = f"{JOBS}/{job['id']}/extend"
            status, problem, _ = await served.ask("POST", extend)
            assert (status, "no items beyond" in problem["detail"]) == (409, True)
            (folder / "users.txt").write_text("ada\nbob\ncid\n")
            status, extended, _ = await served.ask("POST", extend, json={"start": True})
            assert (status, extended["status"], extended["total"]) == (200, "running", 3)
            await become(served, job["id"], "finished")
            (folder / "users.txt").write_text("eve\nbob\ncid\ndan\n")
            status, problem, _ = await served.ask("POST", extend)
            assert (status, "changed since the job was launched" in problem["detail"]) == (409, True)
            for path in (tmp_path / "secret.txt", folder / "link.txt", folder / ".." / "secret.txt"):
                body = {"name": "m", "business": "mail", "source": {"kind": "file", "path": str(path)}}
                assert (await served.ask("POST", JOBS, json=body))[0] == 422, path
                run = await served.app.enqueue("fusee.bulk", {"job": body})
                ended = await served.app.runs.wait(run.id, timeout=20)
                assert "executors.bulk.folders" in (ended.error or ""), "a run reads no more than the API"
    assert sorted(world.done) == [(0, "ada"), (1, "bob"), (2, "cid")]


async def test_a_job_of_another_tenant_is_not_there(serving: Any) -> None:
    key = "a-long-random-secret"
    async with serving(api={"keys": [digest(key)]}) as served:
        World().register(served.app)
        job, _ = await served.app.bulk_jobs.create({"name": "m", "business": "mail", "source": 3})
        _, theirs = await KeyOperations(served.app.store.for_namespace("other").api_keys).create(
            "eve", "operator"
        )
        asks = {"Authorization": f"Bearer {theirs}"}
        for method, path in (
            ("GET", ""),
            ("POST", "/start"),
            ("POST", "/stop"),
            ("GET", "/quarantine"),
            ("GET", "/quarantine/download"),
            ("GET", "/logs"),
            ("POST", "/undo"),
        ):
            status, _, _ = await served.ask(method, f"{JOBS}/{job.id}{path}", headers=asks)
            assert status == 404, path
        body = {"name": "m", "business": "mail", "source": 3}
        status, problem, _ = await served.ask("POST", JOBS, json=body, headers=asks)
        assert status == 422 and "none yet" in problem["detail"]


async def test_a_viewer_changes_nothing(serving: Any) -> None:
    async with serving(api={"keys": [digest("a-long-random-secret")]}) as served:
        World().register(served.app)
        job, _ = await served.app.bulk_jobs.create({"name": "m", "business": "mail", "source": 3})
        _, key = await served.app.keys.create("reader", "viewer")
        asks = {"Authorization": f"Bearer {key}"}
        assert (await served.ask("GET", f"{JOBS}/{job.id}", headers=asks))[0] == 200
        for verb in ("start", "stop", "undo", "quarantine/rerun", "logs", "rate"):
            status, _, _ = await served.ask("POST", f"{JOBS}/{job.id}/{verb}", headers=asks)
            assert status == 403, verb
