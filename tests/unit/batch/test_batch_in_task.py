"""A task that starts a batch: how it is written, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from fusee.errors import Invalid
from fusee.tasks.fields import fields_from, task_from
from fusee.tasks.model.task import TaskSpec
from fusee.values.names import BATCH_HANDLER
from fusee.workflows.model.action import action_of, payload_of
from fusee.workflows.model.workflow import NodeSpec

BATCH = {"batch_type": "turn", "target_type": "dial", "targets": [{"target_id": "a", "after": {"to": 1}}]}


def test_a_batch_stands_in_the_place_of_a_handler() -> None:
    spec = task_from({"name": "nightly", "cron": "0 3 * * *", "batch": BATCH})
    assert (spec.handler, spec.batch) == (BATCH_HANDLER, BATCH)
    assert fields_from(spec)["handler"] is None
    assert task_from(fields_from(spec)) == spec
    assert TaskSpec.from_dict(spec.to_dict()) == spec


def test_a_batch_without_targets_waits_for_who_triggers_it() -> None:
    fields = {"batch_type": "turn", "target_type": "dial", "name": "turn them", "concurrency": 4}
    assert task_from({"name": "by-hand", "batch": fields}).batch == fields


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (7, "batch must be an object"),
        ({"batch_type": "turn"}, "batch: target_type is missing"),
        ({**BATCH, "concurrency": -1}, "batch: concurrency must be a whole number"),
        ({**BATCH, "speed": 1}, "batch: a batch has no 'speed'"),
        ({**BATCH, "targets": []}, r"batch.targets must be a list of at least one target"),
        ({**BATCH, "targets": "all"}, r"batch.targets must be a list"),
        ({**BATCH, "targets": [{"target_id": "a"}, {}]}, "batch: target 2: target_id is missing"),
    ],
)
def test_what_is_wrong_is_told_when_the_task_is_made(batch: Any, says: str) -> None:
    with pytest.raises(Invalid, match=says) as refused:
        task_from({"name": "nightly", "batch": batch})
    assert refused.value.field == "batch"


@pytest.mark.parametrize(
    "beside", [{"handler": "tidy"}, {"workflow": "w"}, {"executor": "shell"}, {"target_url": "http://a.b"}]
)
def test_a_task_runs_one_thing(beside: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match=r"stands in the place of handler|cannot stand beside"):
        task_from({"name": "nightly", "batch": BATCH, **beside})


def test_the_built_in_handler_is_not_named() -> None:
    with pytest.raises(Invalid, match="handler: name what it starts as `batch`"):
        task_from({"name": "nightly", "handler": BATCH_HANDLER})


def test_who_changes_what_a_task_runs_names_the_new_one_only() -> None:
    task = task_from({"name": "nightly", "batch": BATCH})
    assert task_from({"handler": "tidy"}, task).batch is None
    assert (
        task_from({"batch": BATCH}, task_from({"name": "nightly", "handler": "tidy"})).handler
        == BATCH_HANDLER
    )
    assert task_from({"priority": 3}, task).batch == BATCH


def test_a_node_of_a_workflow_may_run_a_task_that_starts_a_batch() -> None:
    task = task_from({"name": "nightly", "batch": BATCH})
    node = NodeSpec(name="n", task="nightly", payload={"concurrency": "{{param.n}}"})
    assert action_of(node, task).handler == BATCH_HANDLER
    assert payload_of(node, task, {"n": 5}, 1) == {"batch": {**BATCH, "concurrency": 5}}
