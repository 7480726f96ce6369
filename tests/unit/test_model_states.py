"""The life of a run and of a session: one table each, walked every way."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fusee.engine.model.outcome import End, Ended, decide
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.states import (
    ACTIVE,
    RUN,
    RUN_BIRTH,
    SESSION,
    TERMINAL,
    IllegalTransition,
    RunStatus,
    SessionState,
    next_session_state,
    next_status,
)

S = RunStatus
VERBS = sorted({verb for _, verb in RUN})
BY_ATTEMPT = {"succeed", "fail", "time_out", "cancel", "skip", "retry", "lose", "release"}
"""What `decide` may say of an attempt."""

policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 5),
    on=st.sets(st.sampled_from(("failed", "timed_out", "lost"))).map(tuple),
)


def _reachable(starts: set[RunStatus]) -> set[RunStatus]:
    seen, ahead = set(starts), list(starts)
    while ahead:
        here = ahead.pop()
        for (state, _), to in RUN.items():
            if state is here and to not in seen:
                seen.add(to)
                ahead.append(to)
    return seen


def test_every_state_can_be_reached_from_a_birth() -> None:
    assert _reachable(set(RUN_BIRTH.values())) == set(RunStatus)


@pytest.mark.parametrize("status", sorted(ACTIVE))
def test_every_run_can_still_end(status: RunStatus) -> None:
    assert _reachable({status}) & TERMINAL


@pytest.mark.parametrize("status", sorted(ACTIVE - {S.DISPATCHED}))
def test_every_run_can_still_succeed(status: RunStatus) -> None:
    assert S.SUCCEEDED in _reachable({status})


@pytest.mark.parametrize("status", sorted(ACTIVE))
def test_every_run_that_has_not_ended_can_be_canceled(status: RunStatus) -> None:
    assert next_status(status, "cancel") is S.CANCELED


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_a_run_that_has_ended_never_changes(status: RunStatus) -> None:
    assert _reachable({status}) == {status}
    for verb in VERBS:
        with pytest.raises(IllegalTransition, match=f"a {status} run cannot {verb}"):
            next_status(status, verb)


def test_a_run_has_ended_or_has_not() -> None:
    assert set(RunStatus) == TERMINAL | ACTIVE
    assert not TERMINAL & ACTIVE


def test_only_a_claim_or_a_start_makes_a_run_running() -> None:
    assert {(state, verb) for (state, verb), to in RUN.items() if to is S.RUNNING} == {
        (S.PENDING, "claim"),
        (S.DISPATCHED, "start"),
    }


@pytest.mark.parametrize("status", sorted(RunStatus))
@pytest.mark.parametrize("verb", VERBS)
def test_what_the_table_does_not_have_cannot_happen(status: RunStatus, verb: str) -> None:
    if (status, verb) in RUN:
        assert next_status(status, verb) is RUN[status, verb]
    else:
        with pytest.raises(IllegalTransition):
            next_status(status, verb)


def test_every_state_says_what_it_means() -> None:
    assert all(isinstance(status, str) and status == status.value for status in RunStatus)
    assert len(set(RunStatus)) == 12


class LifeOfARun(RuleBasedStateMachine):
    """Does to one run what engine and people may do, in any order."""

    @initialize(verb=st.sampled_from(sorted(RUN_BIRTH)), policy=policies)
    def begin(self, verb: str, policy: RetryPolicy) -> None:
        self.policy = policy
        self.status = RUN_BIRTH[verb]
        self.attempt = self.spent = 0
        self.ended_as: RunStatus | None = self.status if self.status in TERMINAL else None
        self.path = [self.status]

    def step(self, verb: str) -> None:
        self.status = next_status(self.status, verb)
        self.path.append(self.status)
        if self.status in TERMINAL:
            self.ended_as = self.status

    @precondition(lambda self: self.status in ACTIVE and self.status not in (S.RUNNING, S.WAITING))
    @rule(data=st.data())
    def something_happens(self, data: st.DataObject) -> None:
        verb = data.draw(st.sampled_from(sorted(verb for state, verb in RUN if state is self.status)))
        before = self.attempt
        if verb in ("claim", "start"):
            self.attempt += 1
        self.step(verb)
        assert self.attempt >= before

    @precondition(lambda self: self.status is S.RUNNING)
    @rule(end=st.sampled_from(End), final=st.booleans(), after=st.none() | st.just(5.0))
    def the_attempt_ends(self, end: End, final: bool, after: float | None) -> None:
        verdict = decide(Ended(end, final=final, after=after), self.policy, self.spent)
        assert verdict.verb in (BY_ATTEMPT if end is not End.ACCEPTED else {"wait"})
        self.step(verdict.verb)
        assert self.status is verdict.status, "a verdict says what the table says"
        self.spent += verdict.counted
        if self.status not in TERMINAL and verdict.counted:
            assert self.spent < self.policy.max_attempts, "another attempt must be left"

    @precondition(lambda self: self.status is S.RUNNING)
    @rule()
    def it_waits_for_a_callback(self) -> None:
        self.step("wait")

    @precondition(lambda self: self.status is S.WAITING)
    @rule(verb=st.sampled_from(["succeed", "fail", "time_out", "cancel", "retry"]))
    def it_is_called_back(self, verb: str) -> None:
        self.spent += 1
        self.step(verb)

    @precondition(lambda self: self.status in TERMINAL)
    @rule(verb=st.sampled_from(VERBS))
    def nothing_happens_any_more(self, verb: str) -> None:
        with pytest.raises(IllegalTransition):
            self.step(verb)

    @invariant()
    def what_has_ended_stays_so(self) -> None:
        if getattr(self, "ended_as", None) is not None:
            assert self.status is self.ended_as

    @invariant()
    def no_more_is_spent_than_was_tried(self) -> None:
        if hasattr(self, "spent"):
            assert 0 <= self.spent <= self.attempt


TestLifeOfARun = LifeOfARun.TestCase
TestLifeOfARun.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


# --- sessions -----------------------------------------------------------------------------------------


def test_a_session_that_is_over_never_changes() -> None:
    over = {SessionState.ENDED, SessionState.LOST}
    for state in SessionState:
        for verb in ("drain", "end", "lose"):
            if (state, verb) in SESSION:
                assert state not in over
                assert next_session_state(state, verb) is SESSION[state, verb]
            else:
                with pytest.raises(IllegalTransition, match=f"a session that is {state} cannot {verb}"):
                    next_session_state(state, verb)


def test_every_live_session_can_end_and_can_be_lost() -> None:
    for state in (SessionState.ALIVE, SessionState.DRAINING):
        assert next_session_state(state, "end") is SessionState.ENDED
        assert next_session_state(state, "lose") is SessionState.LOST
