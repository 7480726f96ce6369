"""`fusee bulk` and `fusee business`: from creation to undo, for people and for programs."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fusee import Fusee
from fusee.bulk.cli.jobs import source_from
from fusee.bulk.cli.look import summary
from fusee.bulk.model.job import BulkJob, BulkStatus, Quarantined
from fusee.bulk.model.spec import BulkSpec
from fusee.bulk.rest.shapes import BulkLogOut, BulkOut, BulkShown, BusinessOut, QuarantinedOut, SegmentOut
from fusee.config import load
from fusee.surfaces.cli.exits import Exit
from fusee.values.fields import shown
from tests.chaos.inside import until

OVERRIDES = {
    "worker": {"poll_interval": 0.05},
    "dispatcher": {"schedule_interval_seconds": 0.05},
}


def business_app(undone: list[int]) -> Fusee:
    app = Fusee(config=load(env={}, overrides=OVERRIDES))
    app.bulk_server.beat = 0.05

    async def undo(item: Any, index: int) -> None:
        undone.append(index)

    @app.bulk("mail", undo=undo, item_attempts=1)
    async def mail(item: Any) -> None:
        if item in (3, "bob"):
            raise ValueError(f"no such user {item}")
        await asyncio.sleep(0.001)

    return app


@contextmanager
def at_work() -> Iterator[list[int]]:
    """The platform, in a thread of its own; answers what was undone."""
    undone: list[int] = []
    ready, over = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def work() -> None:
        loops.append(asyncio.get_running_loop())
        app = business_app(undone)
        async with app.running():

            async def known() -> bool:
                return "bulk.mail" in await app.store.sessions.known_handlers()

            await until(known, 20, "the worker to be there")
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    try:
        assert ready.wait(30)
        yield undone
    finally:
        loops[0].call_soon_threadsafe(over.set)
        thread.join()


def test_from_creation_to_undo(cli: Any) -> None:
    create = ("bulk", "create", "letters", "--business", "mail", "--source", "6", "--creator", "eve")
    assert "no worker knows business 'mail'; known are: none yet" in cli.refused(*create)
    with at_work() as undone:
        job = cli.json(*create, "--data", '{"subject": 1}', "--key", "k")
        number = str(job["id"])
        assert (job["status"], job["created"], job["data"]) == ("created", True, {"subject": 1})
        assert not cli.json(*create, "--data", '{"subject": 1}', "--key", "k")["created"]
        assert cli.json("bulk", "data", number, '{"subject": 2}')["data"] == {"subject": 2}
        done = cli.json("bulk", "start", number, "--wait")
        assert (done["status"], done["done"], done["quarantined"]) == ("finished", 5, 1)
        assert "5 of 6 done, 1 quarantined" in cli.text("bulk", "show", number)
        assert [one["state"] for one in cli.json("bulk", "show", number)["segments"]] == ["done"]
        assert "no such user 3" in cli.text("bulk", "quarantine", number)
        assert [one["index"] for one in cli.json("bulk", "quarantine", number)["items"]] == [3]
        rows = list(csv.DictReader(io.StringIO(cli.text("bulk", "quarantine", number, "--format", "csv"))))
        assert [(row["index"], row["item"]) for row in rows] == [("3", "3")]
        lines = cli.text("bulk", "quarantine", number, "--format", "ndjson").splitlines()
        assert [json.loads(line)["index"] for line in lines] == [3]
        rerun = cli("--json", "bulk", "rerun", number, "--wait", "--name", "again")
        assert rerun.exit_code == Exit.UNSUCCESSFUL, "all that there was is in quarantine again"
        again = json.loads(rerun.stdout)
        assert (again["name"], again["status"], again["quarantined"]) == ("again", "finished", 1)
        assert cli("bulk", "wait", str(again["id"])).exit_code == Exit.UNSUCCESSFUL
        assert cli.json("bulk", "undo", number, "--wait", "--concurrency", "1")["status"] == "finished"
        assert undone == [5, 4, 2, 1, 0]
    assert cli.json("bulk", "log", number, "all is well")["id"] == 4
    told = [(one["kind"], one["text"]) for one in cli.json("bulk", "logs", number)["items"]]
    assert told == [
        ("operator", "created"),
        ("operator", "data changed"),
        ("operator", "started"),
        ("data", "all is well"),
    ]
    assert "all is well" in cli.text("bulk", "logs", number, "--kind", "data")
    assert [one["id"] for one in cli.json("bulk", "list", "--name", "letters")["items"]] == [job["id"]]
    assert "letters" in cli.text("bulk", "list", "--status", "finished")
    assert cli.json("bulk", "list", "--status", "running")["items"] == []


def test_stop_adjust_resume_and_the_exit_codes(cli: Any) -> None:
    with at_work():
        create = (
            "bulk",
            "create",
            "long",
            "--business",
            "mail",
            "--source",
            "100..1_000_000",
            "--rate",
            "50",
        )
        number = str(cli.json(*create, "--rate", "50", "--start")["id"])
        waited = cli("--json", "bulk", "wait", number, "--timeout", "500ms")
        assert waited.exit_code == Exit.TIMED_OUT
        assert "stop it before you change its data" in cli.refused("bulk", "data", number, "1")
        assert "unlimited for no cap" in cli.refused("bulk", "rate", number, "--rate", "0", code=Exit.USAGE)
        held = cli.json("bulk", "rate", number, "--rate", "hold", "--window", "500")
        assert (held["rate"], held["window"]) == ("hold", 500)
        assert held["item_timeout"] == 300
        timed = cli.json("bulk", "rate", number, "--item-timeout", "90s")
        assert timed["item_timeout"] == 90
        assert cli.json("bulk", "rate", number, "--item-timeout", "none")["item_timeout"] is None
        assert "item_timeout" in cli.refused("bulk", "rate", number, "--item-timeout", "0")
        assert "on hold" in cli.text("bulk", "show", number)
        freed = cli.json("bulk", "rate", number, "--rate", "unlimited", "--concurrency", "4")
        assert (freed["rate"], freed["concurrency"]) == ("unlimited", 4)
        told = cli.json("bulk", "rate", number, "--alerts", "https://ops.example/bulk")
        assert told["alerts"]["webhook"] == "https://ops.example/bulk"
        assert cli.json("bulk", "rate", number, "--alerts", "none")["alerts"] is None
        assert "give a rate, a concurrency, a window" in cli.refused("bulk", "rate", number)
        assert "version" in cli.refused("bulk", "stop", number, "--version", "1")
        assert "stop it before you delete it" in cli.refused("bulk", "delete", number)
        assert "stopping" in cli.text("bulk", "pause", number, "--reason", "lunch")
        seen = [json.loads(line) for line in cli.text("--json", "bulk", "watch", number).splitlines()]
        assert (seen[-1]["status"], seen[-1]["reason"]) == ("stopped", "lunch")
        waited = cli("--json", "bulk", "wait", number)
        assert waited.exit_code == Exit.UNSUCCESSFUL
        assert json.loads(waited.stdout)["status"] == "stopped"
        assert cli.json("bulk", "resume", number)["status"] == "running"
        cli.text("bulk", "stop", number)
        assert "stopped: " in cli("bulk", "wait", number).output
    assert "no bulk job 999" in cli.refused("bulk", "show", "999", code=Exit.NOT_FOUND)
    assert cli("bulk", "list", "--status", "paused").exit_code == Exit.USAGE


def test_extend(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "users.txt"
    path.write_text("ada\n")
    with at_work():
        create = ("bulk", "create", "letters", "--business", "mail", "--source", str(path), "--wait")
        number = str(cli.json(*create)["id"])
        assert "no items beyond those" in cli.refused("bulk", "extend", number)
        path.write_text("ada\ncid\n")
        extended = cli.json("bulk", "extend", number)
        assert (extended["status"], extended["total"], extended["done"]) == ("stopped", 2, 1)
        assert cli.json("bulk", "start", number, "--wait")["done"] == 2
        path.write_text("ada\ncid\ndan\n")
        assert "3 of 3 done" in cli.text("bulk", "extend", number, "--wait")


def test_what_people_type_for_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "users.csv").write_text("id\n1\n")
    (tmp_path / "items.json").write_text('["a"]')
    assert source_from("10_000") == 10_000
    assert source_from("5..7") == {"kind": "range", "start": 5, "stop": 7}
    assert source_from('["a", 1]') == ["a", 1]
    assert source_from("@items.json") == ["a"]
    assert source_from("https://crm.example/u.csv") == {"kind": "url", "url": "https://crm.example/u.csv"}
    assert source_from("users.csv") == {"kind": "file", "path": str(tmp_path / "users.csv")}
    for wrong in ("nothing.csv", "{oops", "@none.json"):
        with pytest.raises(Exception, match=r"no file|not JSON|cannot read"):
            source_from(wrong)


def test_the_registry_of_businesses(cli: Any) -> None:
    register = ("business", "register", "crm", "--item", "https://crm.example/mail")
    made = cli.json(*register, "--header", "X-Key: k", "--default", "rate=5", "--timeout", "3s")
    assert (made["version"], made["headers"], made["defaults"]) == (1, {"X-Key": "***"}, {"rate": 5})
    assert "already" in cli.refused(*register)
    changed = cli.json("business", "change", "crm", "--on-stop", "https://crm.example/stop", "--version", "1")
    assert (changed["version"], changed["on_stop"]) == (2, "https://crm.example/stop")
    assert cli.json("business", "change", "crm", "--remove", "on-stop")["on_stop"] is None
    assert "at version 3" in cli.refused("business", "change", "crm", "--timeout", "9s", "--version", "1")
    assert "crm.example" in cli.text("business", "show", "crm")
    assert [one["name"] for one in cli.json("business", "list")["items"]] == ["crm"]
    assert "https://crm.example/mail" in cli.text("business", "list")
    job = cli.json("bulk", "create", "x", "--business", "crm", "--source", "3")
    assert job["rate"] == 5, "as its business says"
    assert f"bulk job {job['id']} is created" in cli.refused("business", "delete", "crm")
    cli.json("business", "register", "unused", "--chunk", "https://crm.example/mail")
    assert cli.json("business", "delete", "unused")["deleted"]
    assert "known are: crm" in cli.refused("business", "show", "unused", code=Exit.NOT_FOUND)
    assert "allow_private" in cli.refused("business", "register", "in", "--item", "http://127.0.0.1/x")
    assert cli("business", "change", "crm").exit_code == Exit.USAGE


def job_of(**fields: Any) -> BulkJob:
    spec = BulkSpec(name="j", business="mail", source={"kind": "list", "items": [1, 2]})
    plain = dict.fromkeys(("reason", "undo_of", "data", "first", "total", "started_at", "finished_at"))
    counts = dict.fromkeys(("ended", "quarantined", "retried", "replayed", "speed", "rate"), 0)
    made = {"id": 1, "namespace": "n", "spec": spec, "status": BulkStatus.RUNNING, "version": 1}
    times = {"created_at": 1, "updated_at": 1, "concurrency": 2}
    return BulkJob(**{**plain, **counts, **made, **times, **fields})


def test_the_command_line_shows_the_same_fields_as_the_api(cli: Any) -> None:
    from fusee.bulk.business import HttpBusiness, KnownBusiness, RegisteredBusiness
    from fusee.bulk.model.job import BulkLog
    from fusee.bulk.model.segment import Segment, SegmentState

    job = job_of()
    segment = Segment(
        job_id=1, number=0, first=0, stop=2, watermark=0, reached=0, ended=0, quarantined=0, retried=0,
        replayed=0, share=1, state=SegmentState.OPEN, run_id=7,
    )  # fmt: skip
    item = Quarantined(index=1, error="e", attempts=1)
    log = BulkLog(id=1, at=1, kind="data", who="w", text="t")
    spec = HttpBusiness(name="crm", item="https://crm.example", headers={"X": "secret"})
    registered = RegisteredBusiness(namespace="n", spec=spec, version=1, created_at=1, updated_at=1)
    for thing, model in (
        (shown(job), BulkOut),
        (shown(job, segment_count=1, segments=[shown(segment)]), BulkShown),
        (shown(segment), SegmentOut),
        (shown(item), QuarantinedOut),
        (shown(log), BulkLogOut),
        (shown(KnownBusiness(name="crm", kind="http", registered=registered)), BusinessOut),
        (shown(KnownBusiness(name="ours", kind="python")), BusinessOut),
    ):
        assert thing == model(**thing).model_dump(mode="json"), model
    assert "secret" not in json.dumps(shown(KnownBusiness(name="c", kind="http", registered=registered)))


def test_a_job_in_one_line() -> None:
    line = summary(job_of(total=10_000, ended=2_500, quarantined=3, replayed=2, speed=500.0))
    assert line == ("bulk job 1 running: 2,497 of 10,000 done, 3 quarantined, 2 replayed, 500.0/s, 15s left")
    assert summary(job_of(status=BulkStatus.STOPPED, reason="lunch")) == "bulk job 1 stopped: 0 done; lunch"
