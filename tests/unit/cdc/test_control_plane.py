"""The reference control plane keeps what it promises to those who test with it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fusee.contrib.cdc import Refused, Unsure
from fusee.contrib.cdc.control_plane.faults import Rule
from fusee.contrib.cdc.control_plane.jobs import Jobs
from fusee.contrib.cdc.control_plane.journal import Journal, read_journal
from tests.unit.cdc.conftest import Here, target


async def ask(here: Here, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        aiohttp.ClientSession() as client,
        client.request(method, here.url + path, json=body, headers=names) as answer,
    ):
        text = await answer.text()
        return answer.status, json.loads(text) if text else None


async def test_every_change_is_one_line_with_what_was_and_what_is(here: Here) -> None:
    before = len(here.entries())
    status, job = await ask(here, "POST", "/jobs/job-1/move_az", {"az": "sg-2"}, Idempotency_Key="k")
    assert (status, job["az"]) == (200, "sg-2")
    (entry,) = here.entries()[before:]
    assert (entry.job, entry.verb, entry.before, entry.after, entry.key) == (
        "job-1", "move_az", {"az": "sg-1"}, {"az": "sg-2"}, "k",
    )  # fmt: skip
    await ask(here, "POST", "/jobs/job-1/move_az", {"az": "sg-2"})
    assert len(here.entries()) == before + 1, "nothing changed"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "detail"),
    [
        ("GET", "/jobs/nobody", None, 404, "there is no job 'nobody'"),
        ("POST", "/jobs/nobody/stop", {}, 404, "there is no job 'nobody'"),
        ("POST", "/jobs/job-1/dance", {}, 404, "there is no verb 'dance'; there are start, pause"),
        ("POST", "/jobs/job-1/move_az", {}, 422, "az: Field required"),
        ("POST", "/jobs/job-1/configure", {"cpu": "4"}, 422, "cpu: Input should be a valid integer"),
        ("POST", "/jobs/job-1/stop", [], 400, "the body must be a JSON object"),
        ("POST", "/jobs/job-1/migrate", {}, 409, "'job-1' is no Panama job"),
        ("PUT", "/admin/faults", [{"fault": "dance"}], 422, "0.fault: Input should be 'hang'"),
        ("POST", "/admin/jobs", {"count": 1, "first": 2}, 409, "there is a job 'job-2' already"),
        ("POST", "/admin/jobs", {"state": {"disk": 1}, "prefix": "x"}, 422, "a job has no 'disk'"),
    ],
)
async def test_refusals_say_why(
    here: Here, method: str, path: str, body: Any, status: int, detail: str
) -> None:
    before = here.entries()
    answered, problem = await ask(here, method, path, body)
    assert answered == status
    assert problem["detail"].startswith(detail)
    assert here.entries() == before


async def test_a_key_is_done_once_and_answered_again(here: Here) -> None:
    stop = ("POST", "/jobs/job-1/stop", {})
    first = await ask(here, *stop, Idempotency_Key="once")
    await ask(here, "POST", "/jobs/job-1/start", {})
    assert await ask(here, *stop, Idempotency_Key="once") == first
    assert here.jobs.get("job-1")["status"] == "running", "the repeat changed nothing"
    status, problem = await ask(here, "POST", "/jobs/job-2/stop", {}, Idempotency_Key="once")
    assert (status, problem["detail"]) == (422, "the idempotency key 'once' was used for another request")


async def test_an_older_token_comes_too_late_once_a_newer_one_has_only_looked(here: Here) -> None:
    assert (await ask(here, "GET", "/jobs/job-1", Fencing_Token="7.2"))[0] == 200
    status, problem = await ask(here, "POST", "/jobs/job-1/stop", {}, Fencing_Token="7.1")
    assert status == 409
    assert problem["detail"] == "came too late: token 7.1 is older than 7.2, which was here already"
    assert (await ask(here, "POST", "/jobs/job-1/stop", {}, Fencing_Token="7.2"))[0] == 200
    assert (await ask(here, "POST", "/jobs/job-2/stop", {}, Fencing_Token="7.1"))[0] == 200, (
        "each job has its own"
    )
    assert (await ask(here, "POST", "/jobs/job-1/start", {}, Fencing_Token="10.1"))[0] == 200, "as numbers"
    assert (await ask(here, "GET", "/jobs/job-1", Fencing_Token="soon"))[0] == 400


async def test_faults(here: Here) -> None:
    az = {"az": "sg-2"}
    here.faults.set(
        [
            Rule(fault="refuse", jobs={"job-1"}),
            Rule(fault="fail", jobs={"job-2"}, times=1),
            Rule(fault="apply_then_fail", verbs={"stop"}),
        ]
    )
    with pytest.raises(Refused, match="423: job 'job-1' is locked"):
        await here.driver.move_az(target("job-1"), "sg-2")
    with pytest.raises(Unsure, match="500: it failed"):
        await here.driver.move_az(target("job-2"), "sg-2")
    assert here.jobs.get("job-2")["az"] == "sg-1"
    await here.driver.move_az(target("job-2"), "sg-2")  # once only
    assert (await here.driver.get(target("job-2"), az)) == az
    with pytest.raises(Unsure):
        await here.driver.stop(target("job-3"))
    assert here.jobs.get("job-3")["status"] == "stopped"
    assert (await ask(here, "GET", "/admin/faults"))[1][1]["times"] == 1
    assert (await ask(here, "DELETE", "/admin/faults"))[0] == 204
    await here.driver.move_az(target("job-1"), "sg-2")


async def test_one_that_hangs_lets_go_when_its_caller_has_gone(here: Here) -> None:
    here.faults.set([Rule(fault="hang", verbs={"stop"}), Rule(fault="apply_then_hang", verbs={"pause"})])
    for command in (here.driver.stop, here.driver.pause):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await command(target("job-1"))
    async with asyncio.timeout(5):
        while (await ask(here, "GET", "/admin/pending"))[1]["pending"]:
            pass
    assert here.jobs.get("job-1")["status"] == "paused"


async def test_a_slow_one_is_done_after_its_caller_has_gone(here: Here) -> None:
    here.faults.set([Rule(fault="slow", seconds=0.2)])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await here.driver.stop(target("job-1"))
    assert here.jobs.get("job-1")["status"] == "running"
    async with asyncio.timeout(5):
        while (await ask(here, "GET", "/admin/pending"))[1]["pending"]:
            pass
    assert here.jobs.get("job-1")["status"] == "stopped"


async def test_and_is_refused_when_a_newer_attempt_has_looked_meanwhile(here: Here) -> None:
    here.faults.set([Rule(fault="slow", seconds=0.2)])
    late = asyncio.create_task(here.driver.stop(target("job-1", run=1)))
    while not (await ask(here, "GET", "/admin/pending"))[1]["pending"]:
        pass
    assert await here.driver.get(target("job-1", run=1, attempt=2), ["status"]) == {"status": "running"}
    with pytest.raises(Refused, match=r"came too late: token 1\.1 is older than 1\.2"):
        await late
    assert here.jobs.get("job-1")["status"] == "running"


async def test_a_migration_makes_a_job_and_its_way_back_removes_it(here: Here) -> None:
    panama = target("panama-1")
    await here.driver.migrate(panama, "orders", {"az": "sg-2"})
    assert await here.driver.get(panama, ["cdc_job", "status"]) == {"cdc_job": "orders", "status": "stopped"}
    assert await here.driver.get(target("orders"), ["kind", "az", "gtid", "status"]) == {
        "kind": "cdc", "az": "sg-2", "gtid": "0-1-7", "status": "running",
    }  # fmt: skip
    with pytest.raises(Refused, match="'panama-1' was migrated: 'orders' is in its place"):
        await here.driver.start(target("panama-1"))
    await here.driver.reset_gtid(target("orders"), "0-1-9", "running")
    await here.driver.unmigrate(target("panama-1"), "running")
    assert await here.driver.get(panama, ["cdc_job", "status", "gtid"]) == {
        "cdc_job": None, "status": "running", "gtid": "0-1-9",
    }, "it goes on where the other one stopped"  # fmt: skip
    with pytest.raises(Refused, match="there is no job 'orders'"):
        await here.driver.get(target("orders"), ["status"])


async def test_the_journal_brings_everything_back(here: Here, tmp_path: Path) -> None:
    await here.driver.migrate(target("panama-1"), "orders", {})
    await here.driver.unmigrate(target("panama-1"), "running")
    await here.driver.configure(target("job-1"), {"cpu": 5})
    journal = Journal(here.path)
    again = Jobs(journal, read_journal(here.path))
    assert again.all == here.jobs.all
    again.add("another", {})
    numbers = [entry.seq for entry in read_journal(here.path)]
    assert numbers == sorted(set(numbers)), "and goes on counting"
    journal.close()
