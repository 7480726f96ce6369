"""A batch and its targets as callers write them: what is wrong is named, and where."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fusee.batches.fields import BATCH, target_from
from fusee.batches.model.spec import OnError, TargetSpec
from fusee.engine.model.retry import RetryPolicy
from fusee.errors import Invalid

GOOD = {"batch_name": "b", "batch_type": "start", "target_type": "cdc"}


def test_a_batch_of_all_its_fields() -> None:
    spec = BATCH.read(
        {
            **GOOD,
            "creator": "ada",
            "env": "live",
            "region": "sg",
            "az": "sg-1",
            "cmdb_service": "orders",
            "extra_info": {"ticket": 7},
            "concurrency": 8,
            "canary": 3,
            "ramp": 1.5,
            "max_errors": "2%",
            "on_error": "rollback",
            "queue": "ops",
            "priority": 5,
            "timeout": "1m30s",
            "retry": {"max_attempts": 2, "on": ["lost"]},
        }
    )
    assert (spec.max_errors, spec.on_error, spec.timeout) == (0.02, OnError.ROLLBACK, 90.0)
    assert spec.retry == RetryPolicy(max_attempts=2, on=("lost",))


def test_short_names_are_understood_and_null_is_as_if_it_were_not_there() -> None:
    given = {
        "name": "b",
        "operation": "start",
        "target_type": "cdc",
        "environment": "live",
        "zone": "z",
        "queue": None,
    }
    spec = BATCH.read(given)
    assert (spec.batch_name, spec.batch_type, spec.env, spec.az) == ("b", "start", "live", "z")
    assert spec.queue == "default"


@pytest.mark.parametrize(
    ("written", "means"), [("2%", 0.02), (" 0.5 % ", 0.005), ("0", 0), ("3", 3), ("0.1", 0.1), ("100%", None)]
)
def test_errors_as_a_share_or_as_a_number(written: str, means: float | None) -> None:
    assert BATCH.read({**GOOD, "max_errors": written}).max_errors == means


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        ({"batch_name": None}, "batch_name", "batch_name is missing"),
        ({"batch_type": None}, "batch_type", "batch_type is missing"),
        ({"target_type": None}, "target_type", "target_type is missing"),
        ({"targets": []}, "targets", "targets is given apart from the fields of a batch"),
        ({"name": "again"}, "batch_name", "batch_name is given twice, under two names"),
        ({"concurrency": "many"}, "concurrency", "concurrency must be a whole number"),
        ({"max_errors": "2 per cent"}, "max_errors", "max_errors must be a number or a share such as 2%"),
        ({"max_errors": "-1%"}, "max_errors", "max_errors must be a number or a share"),
        ({"max_errors": "150%"}, "max_errors", "max_errors must be a number or a share"),
        ({"max_errors": "nan"}, "max_errors", "max_errors must be"),
        ({"on_error": "undo"}, "on_error", "on_error must be one of stop, rollback, not 'undo'"),
        ({"timeout": "soon"}, "timeout", "timeout must be seconds, or a duration"),
        ({"retry": 3}, "retry", "retry must be an object"),
        ({"retry": {"max_attempts": 0}}, "retry", "retry.max_attempts must be"),
        ({"retry": {"tries": 1}}, "retry", "retry has no 'tries'"),
        ({"extra_info": 7}, "extra_info", "extra_info must be an object"),
        ({"batch_name": 7}, "batch_name", "batch_name must be 1 to 200 printable characters"),
    ],
)
def test_what_is_wrong_with_a_batch_is_named(change: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(Invalid, match=says) as refused:
        BATCH.read({**GOOD, **change})
    assert refused.value.field == field


def test_a_batch_is_an_object() -> None:
    with pytest.raises(Invalid, match=r'a batch is an object such as \{"batch_name"'):
        BATCH.read([])


def test_a_target_in_few_words_and_in_many() -> None:
    assert target_from({"target_id": "17"}, "target 1") == TargetSpec(target_id="17")
    full = {
        "id": 17,
        "name": "orders",
        "env": "live",
        "before_update": {"cpu": 1},
        "after_update": {"cpu": 2},
    }
    assert target_from(full, "target 1") == TargetSpec(
        target_id="17", target_name="orders", target_env="live", before={"cpu": 1}, after={"cpu": 2}
    )
    nothing = {"target_id": "17", "target_name": None, "before": None, "after": None}
    assert target_from(nothing, "target 1") == TargetSpec(target_id="17")


@pytest.mark.parametrize(
    ("given", "field", "says"),
    [
        ([17], None, 'target 8: a target is an object such as {"target_id": "17"'),
        ({}, "target_id", "target 8: target_id is missing"),
        ({"target_id": ""}, "target_id", "target 8: target_id must be"),
        ({"target_id": True}, "target_id", "target 8: target_id must be"),
        ({"target_id": "x" * 129}, "target_id", "target 8: target_id must be"),
        ({"target_id": "17 "}, "target_id", "without a space at either end"),
        ({"target_id": "1", "id": "2"}, "target_id", "target 8: target_id is given twice, under two names"),
        ({"target_id": "1", "cpu": 2}, "cpu", "target 8: a target has no 'cpu'; it has target_id, target"),
        ({"target_id": "1", "target_name": 7}, "target_name", "target 8: target_name must be at most 128"),
        ({"target_id": "1", "target_env": "x" * 129}, "target_env", "target 8: target_env must be"),
        ({"target_id": "1", "after": [1]}, "after", "target 8: after must be an object"),
        ({"target_id": "1", "before": []}, "before", "target 8: before must be an object"),
    ],
)
def test_what_is_wrong_with_a_target_is_named_with_its_place(
    given: Any, field: str | None, says: str
) -> None:
    with pytest.raises(Invalid, match=says) as refused:
        target_from(given, "target 8")
    assert refused.value.field == field


# --- the names of the older design


@pytest.mark.parametrize("given", [17, "17", {"target_id": 17}, {"TargetId": 17}, {"id": "17"}])
def test_a_target_may_be_its_id_alone(given: Any) -> None:
    assert target_from(given, "target 1") == TargetSpec(target_id="17")


@pytest.mark.parametrize("given", [True, None, 1.5, [17], ""])
def test_what_is_no_id_and_no_object_is_refused(given: Any) -> None:
    with pytest.raises(Invalid, match="target 3"):
        target_from(given, "target 3")


@pytest.mark.parametrize(
    ("batch_type", "nested", "flat"),
    [
        ("cdc_switch_az", {"SwitchAZ": {"AZ": "sg-2"}}, {"az": "sg-2"}),
        ("cdc_reset_gtid", {"ResetGtid": {"GTID": "0-1-7"}, "SwitchAZ": {"AZ": ""}}, {"gtid": "0-1-7"}),
        (
            "cdc_change_config",
            {"ChangeConfig": {"Cpu": 4, "Memory": None, "MaxPackageSize": 9, "Replicas": 2}},
            {"cpu": 4, "max_package_size": 9, "replicas": 2},
        ),
        ("cdc_switch_run_system", {"SwitchRunSystem": {"RunSystem": "k8s"}}, {"run_system": "k8s"}),
        ("panama_migrate_to_cdc", {"MigratePanama": {"CdcJob": "c-1"}}, {"cdc_job": "c-1"}),
        ("cdc_job_start", {"SwitchAZ": {"AZ": ""}, "ChangeConfig": {"Cpu": None}}, {}),
        ("cdc_switch_az", {"az": "sg-2"}, {"az": "sg-2"}),
    ],
)
def test_parameters_in_groups_are_those_of_the_group_of_the_operation(
    batch_type: str, nested: dict[str, Any], flat: dict[str, Any]
) -> None:
    target = target_from({"id": "1", "BeforeUpdate": nested, "AfterUpdate": nested}, "target 1", batch_type)
    assert (target.before, target.after) == (flat, flat)
    text = json.dumps({"BeforeUpdate": nested, "AfterUpdate": nested})
    assert target_from({"TargetId": 1, "TargetParam": text}, "target 1", batch_type) == target


def test_a_group_of_another_operation_that_says_something_is_refused() -> None:
    with pytest.raises(
        Invalid, match=r"target 1: AfterUpdate\.ResetGtid is not for operation 'cdc_switch_az'"
    ):
        target_from({"id": "1", "AfterUpdate": {"ResetGtid": {"GTID": "0-1-7"}}}, "target 1", "cdc_switch_az")


@pytest.mark.parametrize("param", ["not json", "[]", {"Other": {}}, 7])
def test_a_target_param_that_is_none_is_refused(param: Any) -> None:
    with pytest.raises(Invalid, match="must be an object with BeforeUpdate and AfterUpdate"):
        target_from({"TargetId": 1, "TargetParam": param}, "target 1", "cdc_switch_az")
