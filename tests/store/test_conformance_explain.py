"""`explain` and `simulate` tell what happened, not what was decided before something else happened."""

from __future__ import annotations

from typing import Any

import pytest

from fusee.errors import Invalid
from fusee.executors.http.request import Reach
from fusee.tasks.model.policy import FailureAction
from fusee.tasks.service.explain import Explanation, explain
from fusee.tasks.service.tasks import TaskOperations
from tests.store.clockwork import Clockwork, at, minutes

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def explained(works: Clockwork, minute: float, name: str = "t") -> Explanation:
    task = await works.task(name)
    found = await works.store.tasks.history.fires_at(task.id, at(minute))
    return explain(task, at(minute), found, await works.world.clock.now())


async def simulated(works: Clockwork, begin: float, end: float, **policy: Any) -> list[float]:
    """The minutes of the fires that a simulation plays."""

    async def anything_goes(_: Any) -> None: ...

    now = await works.world.clock.now()
    operations = TaskOperations(works.store.tasks, anything_goes, Reach(()), now_us=lambda: now)
    answer = await operations.simulate("t", at(begin), at(end), policy=policy, duration=1.0)
    return minutes(one.simulated.at for one in answer.fires)


# --- explain -------------------------------------------------------------------------------------------


async def test_what_waits_for_a_worker_has_not_run(works: Clockwork) -> None:
    await works.make("t")
    await works.fire_at(1)
    answer = await explained(works, 1)
    assert (answer.verdict, answer.rule) == ("waiting", "due, and nothing in its way")
    assert "waits for a worker" in answer.text
    await works.claim()
    assert (await explained(works, 1)).verdict == "ran"
    await works.succeed("t", 1)
    assert (await explained(works, 1)).verdict == "ran"


async def test_what_was_canceled_before_it_started_has_not_run(works: Clockwork) -> None:
    await works.make("t")
    await works.fire_at(1)
    await works.fire_at(2)
    assert "is queued" in (await explained(works, 2)).text
    await works.cancel("t", 2)
    await works.cancel("t", 1)
    for minute in (1, 2):
        answer = await explained(works, minute)
        assert answer.verdict == "canceled"
        assert "was canceled before it started" in answer.text


async def test_canceled_while_it_ran_it_has_run(works: Clockwork) -> None:
    await works.make("t")
    await works.fire_at(1)
    await works.claim()
    await works.cancel("t", 1)
    answer = await explained(works, 1)
    assert answer.verdict == "ran" and "canceled now" in answer.text


async def test_what_stood_in_line_and_then_ran(works: Clockwork) -> None:
    await works.make("t")
    await works.fire_at(1)
    await works.claim()
    await works.fire_at(2)
    await works.succeed("t", 1)
    answer = await explained(works, 2)
    assert (answer.verdict, "waits for a worker" in answer.text) == ("waiting", True)
    await works.claim()
    answer = await explained(works, 2)
    assert (answer.verdict, "was queued before it ran" in answer.text) == ("queued", True)


async def test_what_waits_for_other_tasks(works: Clockwork) -> None:
    await works.make("up")
    await works.make("t", cron="* * * * *", after=("up",))
    await works.fire_at(1)
    answer = await explained(works, 1)
    assert (answer.verdict, "waits for other tasks" in answer.text) == ("waiting", True)


async def test_a_paused_task_promises_no_next_fire(works: Clockwork) -> None:
    await works.make("t", failure=FailureAction.PAUSE)
    await works.fire_at(1)
    await works.claim()
    await works.fire_at(2)
    assert "the next time after it is" in (await explained(works, 2.5)).text
    await works.fail("t", 1)
    for minute in (1.5, 2.5, 7.5):
        answer = await explained(works, minute)
        assert answer.verdict == "not_due"
        assert "next time" not in answer.text
        assert "t is paused (failure_action PAUSE: run" in answer.text
    held = await explained(works, 2)
    assert held.verdict == "queued" and held.text.endswith("its queue is held until it is resumed")
    assert (await explained(works, 7)).verdict == "not_enabled"


async def test_an_edit_does_not_make_the_time_of_a_pause_look_pruned(works: Clockwork) -> None:
    await works.make("t")
    await works.fire_at(1)
    await works.store.tasks.steering.steer_task("t", "pause", "on holiday")
    await works.go_to(5.5)
    await works.change("t", description="edited meanwhile")
    answer = await explained(works, 3)
    assert (answer.verdict, answer.text) == ("not_enabled", "t is paused: on holiday")


# --- simulate ------------------------------------------------------------------------------------------


async def test_a_simulation_counts_no_fire_from_before_the_task_existed(works: Clockwork) -> None:
    await works.go_to(10.5)
    await works.make("t")
    await works.fire_at(11)
    await works.fire_at(12)
    assert await simulated(works, 1, 14) == [11, 12, 13, 14], "what is to come counts"


async def test_a_simulation_counts_no_fire_while_the_task_was_not_enabled(works: Clockwork) -> None:
    await works.make("t", max_concurrency=0)
    await works.fire_at(1)
    await works.store.tasks.steering.steer_task("t", "disable")
    await works.go_to(5.5)
    assert await simulated(works, 0, 9) == [1], "disabled, it is due no more"
    await works.store.tasks.steering.steer_task("t", "enable")
    await works.fire_at(6)
    assert await simulated(works, 0, 7) == [1, 6, 7]


@pytest.mark.parametrize(
    "change", [{"catch_up_mode": "FULL"}, {"grace": 60}, {"catch_up_window": 60}, {"catch_up_cap": 1}]
)
async def test_a_simulation_refuses_what_has_no_effect_in_it(works: Clockwork, change: Any) -> None:
    await works.make("t")
    await works.fire_at(1)
    with pytest.raises(Invalid, match="takes every fire as decided on time"):
        await simulated(works, 0, 2, **change)
    assert await simulated(works, 0, 2, overlap_action="SKIP") == [1, 2]
