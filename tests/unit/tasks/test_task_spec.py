"""What a task may be: refused with a word on what to do, and the same again after it was stored."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusee.engine.model.gate import TriggerRule
from fusee.engine.model.retry import RetryPolicy
from fusee.tasks.model.kinds import Alerts
from fusee.tasks.model.policy import CatchUp, Concurrency, FailureAction, Overlap, Policy
from fusee.tasks.model.task import TaskSpec
from fusee.values.names import WORKFLOW_HANDLER


def spec(**fields: Any) -> TaskSpec:
    return TaskSpec(**{"name": "nightly", "handler": "tidy", **fields})


def policy(**fields: Any) -> TaskSpec:
    return spec(policy=Policy(**fields))


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: spec(name="a b"), "name must be 1 to 128 letters"),
        (lambda: spec(description="x" * 513), "description must be at most 512"),
        (lambda: spec(handler=""), "handler is missing: name the handler"),
        (lambda: spec(cron="* * * * *", every=60), "cron and every cannot stand together"),
        (lambda: spec(every=60, at=5), "every and at cannot stand together"),
        (lambda: spec(cron="0 0 31 2 *"), "31 is not a day of February"),
        (lambda: spec(timezone="Nowhere"), "is not a zone of the IANA database"),
        (lambda: spec(every=0.5), "every must be from 1 to 316224000 seconds, not 0.5"),
        (lambda: spec(every=float("nan")), "every must be from 1"),
        (lambda: spec(every=1e12), "every must be from 1"),
        (lambda: spec(every=True), "every must be seconds"),
        (lambda: spec(at=-1), "at must be a whole number from 0"),
        (lambda: spec(executor="perl"), "executor must be one of python, shell, http"),
        (lambda: spec(workflow="flow"), "workflow stands in the place of handler"),
        (lambda: spec(workflow="flow", handler="", executor="http"), "workflow stands in the place of"),
        (lambda: spec(shards=0), "shards must be a whole number from 1 to 1000, not 0"),
        (lambda: spec(shards=1001), "shards must be"),
        (lambda: spec(shards=2.0), "shards must be"),
        (lambda: spec(after=("nightly",)), "nightly cannot wait for itself"),
        (lambda: spec(after=("a", "a")), "after names a task twice"),
        (lambda: spec(after=("a b",)), "after must be 1 to 128 letters"),
        (lambda: spec(after=tuple(f"t{n}" for n in range(1001))), "after may name at most 1000"),
        (lambda: spec(priority=5000), "priority must be a whole number"),
        (lambda: spec(timeout=0), "timeout must be more than 0"),
        (lambda: policy(max_concurrency=-1), "max_concurrency must be a whole number from 0"),
        (lambda: policy(max_concurrency=1.5), "max_concurrency must be a whole number"),
        (lambda: policy(queue_depth=100_001), "queue_depth must be"),
        (lambda: policy(catch_up_cap=0), "catch_up_cap must be"),
        (lambda: policy(burst=0), "burst must be"),
        (lambda: policy(rate=0.0), "rate must be starts a second"),
        (lambda: policy(rate=1e-300), "rate must be starts a second"),
        (lambda: policy(rate=float("nan")), "rate must be starts a second"),
        (lambda: policy(rate=10_001.0), "rate must be starts a second"),
        (lambda: policy(grace=-1.0), "grace must be from 0"),
        (lambda: policy(jitter=float("inf")), "jitter must be from 0"),
        (lambda: policy(catch_up_window=float("nan")), "catch_up_window must be from 0"),
    ],
)
def test_what_a_task_cannot_be_is_refused_with_the_field_and_what_it_may_be(make: Any, what: str) -> None:
    with pytest.raises(ValueError) as refused:
        make()
    assert what in str(refused.value)


def test_cron_is_kept_with_six_fields() -> None:
    assert spec(cron="*/15 9-17 * * mon-fri").cron == spec(cron="0 */15 9-17 * * mon-fri").cron


def test_an_executor_without_handlers_is_its_own_handler() -> None:
    assert spec(handler="", executor="http", payload={"url": "http://x"}).handler == "http"
    assert spec(handler="", executor="shell", payload={"argv": ["ls"]}).handler == "shell"


def test_a_workflow_runs_through_the_built_in_handler() -> None:
    assert spec(handler="", workflow="flow").handler == WORKFLOW_HANDLER


def test_only_what_differs_from_the_defaults_is_stored() -> None:
    assert spec().to_dict() == {"name": "nightly", "handler": "tidy"}


def test_what_a_newer_version_stored_is_read_by_an_older_one() -> None:
    stored = {
        **spec(alerts=Alerts(webhook="http://x")).to_dict(),
        "colour": "red",
        "policy": {"overlap": "SKIP", "mood": "good"},
    }
    stored["alerts"] = {**stored["alerts"], "on_full_moon": True}
    read = TaskSpec.from_dict(stored)
    assert read == spec(alerts=Alerts(webhook="http://x"), policy=Policy(overlap=Overlap.SKIP))


def test_with_policy_changes_nothing_else() -> None:
    made = spec(cron="@daily", shards=3)
    assert made.with_policy(overlap=Overlap.SKIP) == replace(made, policy=Policy(overlap=Overlap.SKIP))


# --- stored and read again ------------------------------------------------------------------------------

NAMES = st.from_regex(r"[a-z][a-z0-9_.-]{0,20}", fullmatch=True)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
SCHEDULES = st.sampled_from(
    [
        {},
        {"cron": "*/5 * * * *"},
        {"cron": "30 0 2 L * ?"},
        {"every": 90.5},
        {"at": 1_900_000_000_000_000},
    ]
)
POLICIES = st.builds(
    Policy,
    overlap=st.sampled_from(Overlap),
    max_concurrency=st.integers(0, 10_000),
    concurrency=st.sampled_from(Concurrency),
    queue_depth=st.integers(0, 100_000),
    failure=st.sampled_from(FailureAction),
    catch_up=st.sampled_from(CatchUp),
    catch_up_window=st.floats(0, 1e6),
    catch_up_cap=st.integers(1, 10_000),
    grace=st.floats(0, 1e4),
    jitter=st.floats(0, 1e4),
    rate=st.none() | st.floats(0.001, 10_000),
    burst=st.integers(1, 10_000),
)
RETRIES = st.builds(
    RetryPolicy, max_attempts=st.integers(1, 9), base=st.floats(0, 60), on=st.just(("failed",))
) | st.just(RetryPolicy())
SPECS = st.builds(
    lambda name, schedule, **fields: TaskSpec(name=name, **schedule, **fields),
    name=NAMES,
    schedule=SCHEDULES,
    description=st.text(max_size=30),
    timezone=st.sampled_from(["UTC", "Europe/Berlin", "Asia/Shanghai"]),
    handler=NAMES,
    payload=st.dictionaries(st.text(max_size=6), JSON, max_size=3),
    queue=NAMES,
    region=st.just("") | NAMES,
    priority=st.integers(-1000, 1000),
    timeout=st.none() | st.floats(0.1, 1000),
    retry=st.none() | RETRIES,
    policy=POLICIES,
    shards=st.integers(1, 1000),
    after=st.lists(st.from_regex(r"up[0-9]{1,3}", fullmatch=True), max_size=3, unique=True).map(tuple),
    trigger_rule=st.sampled_from(TriggerRule),
    alerts=st.none()
    | st.builds(
        Alerts,
        webhook=st.just("https://x/y"),
        on_failure=st.booleans(),
        on_failures_in_a_row=st.none() | st.integers(1, 9),
        on_lateness=st.none() | st.floats(0.1, 100),
    ),
    labels=st.dictionaries(NAMES, st.text(max_size=5), max_size=2),
)


@settings(max_examples=40, deadline=None)
@given(SPECS)
def test_what_is_stored_is_what_is_read(made: TaskSpec) -> None:
    stored = json.loads(json.dumps(made.to_dict()))
    assert TaskSpec.from_dict(stored) == made
