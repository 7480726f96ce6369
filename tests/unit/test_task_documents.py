"""A task as a document and back: the same task, and no field that says what is so anyway."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusee.errors import Invalid
from fusee.tasks.fields import TASK, fields_from, task_from
from fusee.tasks.model.task import Task, TaskSpec, TaskStatus
from fusee.tasks.service.apply import DURATIONS, document_of, read_document
from fusee.values.durations import duration_text
from fusee.values.times import iso

ROOT = Path(__file__).parents[2]

names = st.from_regex(r"[a-z][a-z0-9/_.-]{0,20}", fullmatch=True)
plain = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20)
schedules = st.one_of(
    st.just({}),
    st.sampled_from(["0 3 * * *", "*/15 * * * * *", "@daily", "0 9 * * MON-FRI"]).map(lambda c: {"cron": c}),
    st.floats(1, 1e6).map(lambda seconds: {"every": seconds}),
    st.integers(0, 2**51).map(lambda at: {"at": iso(at)}),
)
works = st.one_of(
    names.map(lambda name: {"handler": name}),
    names.map(lambda name: {"workflow": name}),
    st.just({"executor": "http", "payload": {"url": "https://a.example"}}),
    st.just({"executor": "shell", "handler": "dump", "payload": {"argv": ["ls"]}}),
)
others = st.fixed_dictionaries(
    {},
    optional={
        "description": st.text(max_size=50),
        "timezone": st.sampled_from(["UTC", "Europe/Berlin", "Asia/Tokyo"]),
        "queue": names,
        "region": names,
        "priority": st.integers(-1000, 1000),
        "timeout": st.floats(0.001, 1e6),
        "retry": st.sampled_from([{}, {"max_attempts": 3}, {"max_attempts": 5, "on": ["lost"]}]),
        "overlap_action": st.sampled_from(["ALLOW", "SKIP", "CANCEL_PREV", "PARALLEL"]),
        "max_concurrency": st.integers(0, 100),
        "failure_action": st.sampled_from(["RUN_NEW", "SKIP", "RETRY", "PAUSE"]),
        "catch_up_mode": st.sampled_from(["NONE", "COMPACT", "FULL"]),
        "catch_up_window": st.floats(0, 1e6),
        "grace": st.integers(0, 3600),
        "rate": st.floats(0.001, 100),
        "shards": st.integers(1, 1000),
        "after": st.lists(names.map("up/".__add__), max_size=3, unique=True),
        "trigger_rule": st.sampled_from(["all_success", "all_done", "any_success"]),
        "alerts": st.sampled_from(["https://a.example", {"webhook": "https://a.example", "on_lateness": 5}]),
        "labels": st.dictionaries(names, st.text(max_size=20), max_size=3),
    },
)


def task_of(spec: TaskSpec, status: TaskStatus = TaskStatus.ENABLED) -> Task:
    return Task(
        id=1, namespace="default", spec=spec, status=status, reason=None, version=1, anchor=0,
        next_fire_at=None, last_fire_at=None, last_run_id=None, last_status=None, failures=0,
        created_at=0, updated_at=0,
    )  # fmt: skip


@given(names, schedules, works, others, st.dictionaries(names, plain, max_size=3))
def test_a_document_is_the_whole_task(
    name: str, schedule: dict[str, Any], work: dict[str, Any], more: dict[str, Any], payload: dict[str, Any]
) -> None:
    spec = task_from({"name": name, "payload": payload, **schedule, **work, **more})
    for kept in (spec, TaskSpec.from_dict(spec.to_dict())):
        document = document_of(task_of(kept))
        assert read_document(document) == (spec, True)
        assert next(iter(document)) == "name" and None not in document.values()


def test_a_document_leaves_out_what_is_so_anyway() -> None:
    spec = task_from({"name": "a", "handler": "x", "every": 5400, "queue": "default", "max_concurrency": 1})
    assert document_of(task_of(spec)) == {"name": "a", "handler": "x", "every": "1h30m"}
    off = document_of(task_of(spec, TaskStatus.DISABLED))
    assert off["enabled"] is False and read_document(off) == (spec, False)
    assert "enabled" not in document_of(task_of(spec, TaskStatus.PAUSED))


def test_whose_it_is_is_no_part_of_it() -> None:
    spec = task_from({"name": "a", "handler": "x", "labels": {"applied": "default", "team": "ops"}})
    assert document_of(task_of(spec))["labels"] == {"team": "ops"}


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ([], "a task is an object"),
        ({"handler": "x"}, "a task without a name: "),
        ({"name": "a", "handler": "x", "enabled": "yes"}, "task a: enabled must be true or false"),
        ({"name": "a", "handler": "x", "status": "PAUSED"}, "task a: status must be one of ENABLED"),
        ({"name": "a", "handler": "x", "cron": "61 * * * *"}, "task a: cron"),
    ],
)
def test_what_is_no_task_is_named(document: Any, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        read_document(document)


def test_the_guide_tells_every_field_and_its_default() -> None:
    guide = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
    _, _, section = guide.partition("## Every field\n")
    rows = re.findall(r"^\| `(\w+)` \|(.*?)\|", section.partition("\n## ")[0], re.MULTILINE)
    assert sorted(field for field, _ in rows) == sorted(TASK.fields)
    defaults = fields_from(TaskSpec(name="x", handler="x"))
    for field, told in ((field, cell.strip()) for field, cell in rows):
        if field in ("name", "handler"):
            assert told == ("required" if field == "name" else "none")
            continue
        default = defaults[field]
        if field in DURATIONS and default is not None:
            default = duration_text(default)
        assert told.strip("`") == ("none" if default in (None, "", [], {}) else str(default)), field
