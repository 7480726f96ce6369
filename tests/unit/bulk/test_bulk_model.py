"""A bulk job's states, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fusee.bulk.model.job import BULK, BulkJob, BulkStatus, handler_of_business, next_bulk_status
from fusee.bulk.model.pacing import HOLD
from fusee.bulk.model.spec import BulkSpec
from fusee.bulk.model.window import window_for
from fusee.engine.model.states import IllegalTransition


def spec(**fields: Any) -> BulkSpec:
    return BulkSpec(**{"name": "mail", "business": "mail", "source": {"kind": "range", "stop": 10}, **fields})


def test_every_state_can_be_reached_and_only_an_extension_leads_out_of_finished() -> None:
    assert set(BULK.values()) | {BulkStatus.CREATED} == set(BulkStatus)
    left = {status for status, verb in BULK if verb != "extend"}
    assert set(BulkStatus) - left == {BulkStatus.FINISHED}


def test_a_wrong_step_is_refused() -> None:
    assert next_bulk_status(BulkStatus.STOPPED, "resume") is BulkStatus.RUNNING
    with pytest.raises(IllegalTransition, match="that is finished cannot resume"):
        next_bulk_status(BulkStatus.FINISHED, "resume")


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"name": ""}, "name"),
        ({"business": "no good"}, "business"),
        ({"source": {}}, "source"),
        ({"concurrency": 0}, "concurrency"),
        ({"rate": -2}, "rate"),
        ({"rate": True}, "rate"),
        ({"rate": 0.0001}, "rate"),
        ({"window": 2**18 + 1}, "window"),
        ({"item_attempts": 0}, "item_attempts"),
        ({"item_backoff": -1}, "item_backoff"),
        ({"error_budget": 1.5}, "error_budget"),
        ({"labels": {"a": 1}}, "labels"),
        ({"adaptive": 1}, "adaptive"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        spec(**fields)


def test_an_error_budget_is_a_number_or_a_share() -> None:
    assert spec().errors_allowed(100) is None
    assert spec(error_budget=0).errors_allowed(100) == 0
    assert spec(error_budget=7).errors_allowed(100) == 7
    assert spec(error_budget=0.29).errors_allowed(100) == 29


def test_the_window_has_room_for_what_runs_and_for_what_waits_to_be_tried_again() -> None:
    assert window_for(32) == 64
    assert window_for(4000, 100.0, 1.5) == 8000
    assert window_for(1) == 2
    assert window_for(32, 500.0, 1.5) == 1250, "500 a second for two and a half seconds"
    assert window_for(32, 1e9, 60.0) == 2**16
    assert window_for(2**18) == 2**18
    assert spec().retry_span == 1.5, "half a second, then a whole one"
    assert spec(item_attempts=1).retry_span == 0
    assert spec(item_attempts=1000, item_backoff=3600.0).retry_span == 60.0


def test_progress_and_eta() -> None:
    job = BulkJob(
        id=1,
        namespace="default",
        spec=spec(),
        status=BulkStatus.RUNNING,
        reason=None,
        version=1,
        undo_of=None,
        data=None,
        first=0,
        total=1000,
        ended=250,
        quarantined=50,
        retried=0,
        replayed=0,
        rate=0,
        concurrency=1,
        speed=10.0,
        created_at=0,
        updated_at=0,
        started_at=0,
        finished_at=None,
    )
    assert (job.done, job.progress, job.eta) == (200, 0.25, 75.0)
    assert replace(job, rate=HOLD).eta is None, "nothing starts"


def test_a_business_is_served_under_its_own_name() -> None:
    assert handler_of_business("mail") == "bulk.mail"
