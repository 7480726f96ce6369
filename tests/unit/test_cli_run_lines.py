"""How the command line says that a run has ended."""

from __future__ import annotations

from typing import Any

from fusee.engine.model.outcome import End
from fusee.engine.model.run import Attempt, Run
from fusee.engine.model.states import RunStatus
from fusee.runs.cli.look import ended_line

SECOND = 1_000_000


def run(**fields: Any) -> Run:
    plain = dict.fromkeys(Run.__dataclass_fields__)
    made = {"id": 2, "status": RunStatus.SUCCEEDED, "result": "ok", "attempt": 1}
    times = {"created_at": 0, "started_at": 2_400_000, "finished_at": 2_410_000}
    return Run(**{**plain, **made, **times, **fields})


def attempt(number: int, started_at: int | None) -> Attempt:
    return Attempt(
        run_id=2,
        attempt=number,
        end=End.FAILED,
        worker="w",
        started_at=started_at,
        finished_at=0,
        error="no luck",
        output=None,
        effect=None,
        late_end=None,
        late_at=None,
    )


def test_a_run_that_was_retried_took_as_long_as_all_of_its_attempts() -> None:
    earlier = [attempt(1, 10_000), attempt(2, 1_000_000)]
    assert ended_line(run(attempt=3), earlier) == 'run 2 succeeded in 2.4s (3 attempts): "ok"'
    bad = run(attempt=3, status=RunStatus.FAILED, error="no luck\nat line 7")
    assert ended_line(bad, earlier) == "run 2 failed in 2.4s (3 attempts): no luck"


def test_a_run_of_one_attempt_took_as_long_as_that() -> None:
    assert ended_line(run(started_at=SECOND, finished_at=3 * SECOND)) == 'run 2 succeeded in 2.0s: "ok"'
    assert ended_line(run(started_at=None, status=RunStatus.CANCELED)) == "run 2 canceled"
