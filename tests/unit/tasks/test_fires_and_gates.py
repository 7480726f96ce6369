"""How a fire with several runs ends, and when a gate before a run opens."""

from __future__ import annotations

import pytest

from fusee.engine.model.gate import GateState, TriggerRule, judge
from fusee.engine.model.states import RunStatus
from fusee.tasks.model.fire import Cause, Fire, fire_end
from fusee.tasks.model.policy import Decision

S = RunStatus


@pytest.mark.parametrize(
    ("statuses", "end"),
    [
        ([S.SUCCEEDED], S.SUCCEEDED),
        ([S.SUCCEEDED, S.SUCCEEDED], S.SUCCEEDED),
        ([S.SUCCEEDED, S.FAILED], S.FAILED),
        ([S.TIMED_OUT, S.SUCCEEDED], S.FAILED),
        ([S.CANCELED], S.FAILED),
        ([S.SUCCEEDED, S.CANCELED], S.FAILED),
        ([S.SKIPPED], None),
        ([S.MISSED], None),
        ([S.SUCCEEDED, S.SKIPPED], None),
        ([S.SKIPPED, S.FAILED], S.FAILED),
    ],
)
def test_a_fire_is_as_good_as_the_worst_of_its_runs(statuses: list[S], end: S | None) -> None:
    assert fire_end(statuses, superseded=False) is end


@pytest.mark.parametrize(
    ("statuses", "end"),
    [
        ([S.CANCELED], None),
        ([S.SUCCEEDED, S.CANCELED], None),
        ([S.SUCCEEDED], S.SUCCEEDED),
        ([S.FAILED], S.FAILED),
        ([S.CANCELED, S.FAILED], S.FAILED),
    ],
)
def test_canceled_by_its_own_tasks_policy_is_no_failure(statuses: list[S], end: S | None) -> None:
    assert fire_end(statuses, superseded=True) is end


GATES = """
needs ended succeeded | all_success all_done any_success
  1     0       0     |    wait       wait      wait
  1     1       1     |    open       open      open
  1     1       0     |    shut       open      shut
  2     0       0     |    wait       wait      wait
  2     1       1     |    wait       wait      open
  2     1       0     |    shut       wait      wait
  2     2       2     |    open       open      open
  2     2       1     |    shut       open      open
  2     2       0     |    shut       open      shut
  0     0       0     |    open       open      shut
"""


@pytest.mark.parametrize("line", GATES.strip().splitlines()[1:])
def test_a_gate_opens_by_its_rule(line: str) -> None:
    counts, answers = line.split("|")
    needs, ended, succeeded = map(int, counts.split())
    rules = (TriggerRule.ALL_SUCCESS, TriggerRule.ALL_DONE, TriggerRule.ANY_SUCCESS)
    judged = [judge(rule, needs, succeeded, ended) for rule in rules]
    assert judged == [GateState(word) for word in answers.split()]


@pytest.mark.parametrize("rule", TriggerRule)
def test_a_gate_never_stays_undecided_when_all_have_ended(rule: TriggerRule) -> None:
    for needs in range(1, 5):
        for succeeded in range(needs + 1):
            assert judge(rule, needs, succeeded, needs) is not GateState.WAIT


def test_lateness_is_the_time_between_the_fire_and_its_decision() -> None:
    fire = Fire(
        task_id=1,
        fire_time=5_000_000,
        shard=0,
        cause=Cause.SCHEDULE,
        decision=Decision.RUN,
        code="on_time",
        rule="due",
        run_id=1,
        run_status=None,
        decided_at=6_500_000,
        admitted_at=None,
        through=None,
        held=None,
        backfill_id=None,
    )
    assert fire.lateness == 1.5
