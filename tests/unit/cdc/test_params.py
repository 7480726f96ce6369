"""What callers may give to each operation, and how a mistake is told."""

from __future__ import annotations

from typing import Any

import pytest

from fusee import Fusee
from fusee.contrib import cdc
from fusee.errors import Invalid

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


@pytest.fixture
def app() -> Fusee:
    app = Fusee("sqlite://")
    cdc.register(app, cdc.ControlPlaneDriver("http://127.0.0.1:1"))
    return app


def check(app: Fusee, operation: str, after: dict[str, Any], before: dict[str, Any] | None = None) -> None:
    kind = "panama" if operation.startswith("panama") else "cdc"
    known = app.operations.get(kind, operation)
    assert known is not None
    known.check(after, before or {}, "target 7")


@pytest.mark.parametrize(
    ("operation", "after"),
    [
        ("cdc_job_start", {}),
        ("cdc_job_stop", {}),
        ("cdc_switch_az", {"az": "sg-2"}),
        ("cdc_reset_gtid", {"gtid": f"{UUID}:1-5"}),
        ("cdc_reset_gtid", {"gtid": f"{UUID}:1-5:7,{UUID}:11"}),
        ("cdc_reset_gtid", {"gtid": "0-1-100,1-2-3"}),
        ("cdc_reset_gtid", {"gtid": ""}),
        ("cdc_change_config", {"cpu": 2000}),
        ("cdc_change_config", {"memory": 4096, "max_package_size": 1, "replicas": 3, "cpu": None}),
        ("cdc_switch_run_system", {"run_system": "k8s"}),
        ("panama_migrate_to_cdc", {}),
        ("panama_migrate_to_cdc", {"cdc_job": "orders", "az": "sg-2", "replicas": 2}),
    ],
)
def test_accepted(app: Fusee, operation: str, after: dict[str, Any]) -> None:
    check(app, operation, after, after)


@pytest.mark.parametrize(
    ("operation", "after", "told"),
    [
        ("cdc_job_start", {"now": True}, "target 7: after.now: Extra inputs are not permitted"),
        ("cdc_switch_az", {}, "target 7: after.az: Field required"),
        (
            "cdc_switch_az",
            {"az": "sg 2"},
            "target 7: after.az: 1 to 128 characters without spaces",
        ),
        ("cdc_switch_az", {"az": 2}, "target 7: after.az: Input should be a valid string"),
        ("cdc_reset_gtid", {"gtid": f"{UUID}:"}, "target 7: after.gtid: a GTID set such as"),
        ("cdc_reset_gtid", {"gtid": "binlog.000001"}, "target 7: after.gtid: a GTID set such as"),
        (
            "cdc_change_config",
            {},
            "target 7: after: give at least one of cpu, memory",
        ),
        ("cdc_change_config", {"cpu": "2"}, "target 7: after.cpu: Input should be a valid integer"),
        (
            "cdc_change_config",
            {"replicas": 0},
            "target 7: after.replicas: Input should be greater",
        ),
        ("cdc_change_config", {"disk": 1}, "target 7: after.disk: Extra inputs are not permitted"),
        (
            "cdc_switch_run_system",
            {"run_system": ""},
            "target 7: after.run_system: 1 to 128",
        ),
        ("panama_migrate_to_cdc", {"cdc_job": "a/b"}, "target 7: after.cdc_job: 1 to 128"),
    ],
)
def test_refused(app: Fusee, operation: str, after: dict[str, Any], told: str) -> None:
    with pytest.raises(Invalid) as refused:
        check(app, operation, after)
    assert told in str(refused.value)


def test_before_is_checked_when_it_is_given(app: Fusee) -> None:
    with pytest.raises(Invalid, match=r"target 7: before\.az"):
        check(app, "cdc_switch_az", {"az": "sg-2"}, {"az": 1})
