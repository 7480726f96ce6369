"""What becomes of a run when an attempt ends: the specification as a table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusee.engine.model.outcome import Effect, End, Ended, Retry, decide
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.states import RUN, TERMINAL, RunStatus

S = RunStatus
THREE = RetryPolicy(max_attempts=3, backoff="linear", base=10, jitter=0)
ONCE = RetryPolicy(max_attempts=1)
NEVER = RetryPolicy(max_attempts=3, on=())
ON_FAILED = RetryPolicy(max_attempts=3, on=("failed",), base=1, jitter=0)
ON_LOST = RetryPolicy(max_attempts=3, on=("lost",))

# The attempt's end, attempts spent before it, the policy → the verb, the state, its delay, the reason.
SPECIFICATION = [
    # Whatever the policy and the attempts left, these end the run.
    (End.SUCCEEDED, 0, THREE, "succeed", S.SUCCEEDED, 0, "succeeded"),
    (End.SUCCEEDED, 2, ONCE, "succeed", S.SUCCEEDED, 0, "succeeded"),
    (End.SKIPPED, 0, THREE, "skip", S.SKIPPED, 0, "skipped by its handler"),
    (End.SKIPPED, 9, NEVER, "skip", S.SKIPPED, 0, "skipped by its handler"),
    (End.ABANDONED, 0, THREE, "fail", S.FAILED, 0, "abandoned by its handler"),
    (End.ABANDONED, 2, NEVER, "fail", S.FAILED, 0, "abandoned by its handler"),
    (End.CANCELED, 0, THREE, "cancel", S.CANCELED, 0, "canceled while running"),
    (End.CANCELED, 2, ONCE, "cancel", S.CANCELED, 0, "canceled while running"),
    # Handed back: in line again at once, and nothing is spent; but what may be tried only once, and had
    # started, is not tried twice.
    (End.RETURNED, 0, THREE, "release", S.PENDING, 0, "handed back by its worker"),
    (End.RETURNED, 2, THREE, "release", S.PENDING, 0, "handed back by its worker"),
    (
        End.RETURNED,
        0,
        ONCE,
        "fail",
        S.FAILED,
        0,
        "stopped because its worker went away; its policy allows one attempt",
    ),
    (End.RETURNED, 0, NEVER, "release", S.PENDING, 0, "handed back by its worker"),
    # Accepted by a service that will call back: waits, and nothing is spent before it has.
    (End.ACCEPTED, 0, THREE, "wait", S.WAITING, 0, "waits for the service that it called"),
    (End.ACCEPTED, 0, ONCE, "wait", S.WAITING, 0, "waits for the service that it called"),
    (End.ACCEPTED, 2, NEVER, "wait", S.WAITING, 0, "waits for the service that it called"),
    # Failed: tried again later while attempts are left and the policy says so.
    (End.FAILED, 0, THREE, "retry", S.DELAYED, 10, "failed; tried again"),
    (End.FAILED, 1, THREE, "retry", S.DELAYED, 20, "failed; tried again"),
    (End.FAILED, 2, THREE, "fail", S.FAILED, 0, "failed; 3 of 3 attempts spent"),
    (End.FAILED, 0, ONCE, "fail", S.FAILED, 0, "failed; 1 of 1 attempts spent"),
    (End.FAILED, 0, NEVER, "fail", S.FAILED, 0, "failed; its policy does not retry this"),
    (End.FAILED, 0, ON_LOST, "fail", S.FAILED, 0, "failed; its policy does not retry this"),
    (End.FAILED, 0, ON_FAILED, "retry", S.DELAYED, 1, "failed; tried again"),
    # Timed out: the same, and its own terminal state.
    (End.TIMED_OUT, 0, THREE, "retry", S.DELAYED, 10, "timed out; tried again"),
    (End.TIMED_OUT, 2, THREE, "time_out", S.TIMED_OUT, 0, "timed out; 3 of 3 attempts spent"),
    (End.TIMED_OUT, 0, ONCE, "time_out", S.TIMED_OUT, 0, "timed out; 1 of 1 attempts spent"),
    (End.TIMED_OUT, 0, ON_FAILED, "time_out", S.TIMED_OUT, 0, "timed out; its policy does not retry this"),
    # Lost: in line again at once, since waiting would help nobody.
    (End.LOST, 0, THREE, "lose", S.PENDING, 0, "its worker was lost"),
    (End.LOST, 1, THREE, "lose", S.PENDING, 0, "its worker was lost"),
    (End.LOST, 2, THREE, "fail", S.FAILED, 0, "its worker was lost; 3 of 3 attempts spent"),
    (End.LOST, 0, ONCE, "fail", S.FAILED, 0, "its worker was lost; 1 of 1 attempts spent"),
    (End.LOST, 0, ON_FAILED, "fail", S.FAILED, 0, "its worker was lost; its policy does not retry this"),
]


@pytest.mark.parametrize(
    ("end", "spent", "policy", "verb", "status", "delay", "reason"),
    SPECIFICATION,
    ids=[
        f"{row[0]} after {row[1]} of {row[2].max_attempts} on {'+'.join(row[2].on)}" for row in SPECIFICATION
    ],
)
def test_the_specification(
    end: End, spent: int, policy: RetryPolicy, verb: str, status: RunStatus, delay: float, reason: str
) -> None:
    verdict = decide(Ended(end), policy, spent)
    assert (verdict.verb, verdict.status, verdict.delay, verdict.reason) == (verb, status, delay, reason)
    assert verdict.counted is (verb not in ("release", "succeed", "wait"))


@pytest.mark.parametrize("policy", [THREE, ONCE, NEVER])
def test_what_never_started_is_handed_back_whatever_its_policy(policy: RetryPolicy) -> None:
    verdict = decide(Ended(End.RETURNED, effect=Effect.NONE), policy, 0)
    assert (verdict.verb, verdict.status, verdict.counted) == ("release", S.PENDING, False)


def test_the_specification_speaks_of_every_end() -> None:
    assert {row[0] for row in SPECIFICATION} == set(End)


@pytest.mark.parametrize(("end", "status"), [(End.FAILED, S.FAILED), (End.TIMED_OUT, S.TIMED_OUT)])
def test_no_attempt_starts_beside_one_that_could_not_be_stopped(end: End, status: RunStatus) -> None:
    verdict = decide(Ended(end, final=True), THREE, 0)
    assert (verdict.status, verdict.reason) == (status, "it could not be stopped")


def test_a_handler_that_names_a_delay_gets_it() -> None:
    assert decide(Ended(End.FAILED, after=77.5), THREE, 0).delay == 77.5
    assert decide(Ended(End.FAILED, after=0), THREE, 0).delay == 0
    assert decide(Ended(End.FAILED, after=77.5), ONCE, 0).status is S.FAILED


def test_a_skip_keeps_the_handlers_reason() -> None:
    assert decide(Ended(End.SKIPPED, error="nobody home"), THREE, 0).reason == "nobody home"


@given(
    end=st.sampled_from(End),
    spent=st.integers(0, 20),
    attempts=st.integers(1, 10),
    on=st.sets(st.sampled_from(("failed", "timed_out", "lost"))),
    final=st.booleans(),
    chance=st.floats(0, 1),
)
def test_every_verdict_is_a_step_of_the_table_and_keeps_the_budget(
    end: End, spent: int, attempts: int, on: set[str], final: bool, chance: float
) -> None:
    policy = RetryPolicy(max_attempts=attempts, on=tuple(on))
    verdict = decide(Ended(end, final=final, effect=Effect.UNKNOWN), policy, spent, chance)
    assert RUN[S.RUNNING, verdict.verb] is verdict.status
    assert verdict.reason
    assert (verdict.delay > 0) <= (verdict.status is S.DELAYED)
    if verdict.status not in TERMINAL and end not in (End.RETURNED, End.ACCEPTED):
        assert str(end) in on
        assert spent + 1 < attempts


@given(
    end=st.sampled_from((End.SUCCEEDED, End.FAILED, End.ABANDONED, End.TIMED_OUT)),
    spent=st.integers(0, 5),
    attempts=st.integers(1, 5),
)
def test_what_a_service_may_answer_leads_from_waiting_where_it_leads_from_running(
    end: End, spent: int, attempts: int
) -> None:
    verdict = decide(Ended(end), RetryPolicy(max_attempts=attempts), spent)
    assert RUN[S.WAITING, verdict.verb] is verdict.status


@pytest.mark.parametrize("after", [-1, 30 * 86400 + 1, float("nan"), float("inf")])
def test_a_retry_must_be_soon_enough(after: float) -> None:
    with pytest.raises(ValueError, match=r"Retry\(after="):
        Retry(after=after)


def test_a_retry_may_name_its_time() -> None:
    assert Retry(after=5).after == 5
    assert Retry().after is None
    assert str(Retry("busy")) == "busy"
