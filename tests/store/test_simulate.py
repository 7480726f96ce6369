"""What a simulation says a policy does is what the store does."""

from __future__ import annotations

import random

from fusee.engine.model.outcome import End
from fusee.engine.store.tables import delayed
from fusee.tasks.model.policy import Concurrency, Decision, FailureAction, Overlap, Policy
from fusee.tasks.model.simulate import Simulated, simulate
from fusee.tasks.store.tables import tasks
from tests.store.clockwork import MINUTE, Clockwork, at, spec

FIRES = 10
POLICIES = {
    "line": Policy(queue_depth=2),
    "line-of-two": Policy(max_concurrency=2, queue_depth=1),
    "overlap-skip": Policy(overlap=Overlap.SKIP),
    "cap-skip": Policy(max_concurrency=2, concurrency=Concurrency.SKIP),
    "cap-parallel": Policy(concurrency=Concurrency.PARALLEL),
    "cancel-prev": Policy(overlap=Overlap.CANCEL_PREV, failure=FailureAction.RETRY),
    "parallel": Policy(overlap=Overlap.PARALLEL),
    "no-cap": Policy(max_concurrency=0),
    "failure-skip": Policy(failure=FailureAction.SKIP, queue_depth=1),
    "failure-retry": Policy(failure=FailureAction.RETRY),
    "failure-pause": Policy(failure=FailureAction.PAUSE, overlap=Overlap.SKIP),
    "failure-skip-line": Policy(failure=FailureAction.SKIP),
    "failure-skip-lines": Policy(failure=FailureAction.SKIP, max_concurrency=2),
    "failure-pause-line": Policy(failure=FailureAction.PAUSE),
    "skip-skip": Policy(overlap=Overlap.SKIP, failure=FailureAction.SKIP),
    "rate": Policy(max_concurrency=0, rate=1 / 90, burst=2),
}


def _script(seed: str) -> list[tuple[float, bool]]:
    """How long the fire of each minute takes, in minutes, and whether it fails; never a whole minute."""
    dice = random.Random(seed)
    return [(dice.choice([0.3, 0.7, 1.4, 2.6, 3.5]), dice.random() < 0.3) for _ in range(FIRES)]


async def test_the_store_decides_as_the_simulation_says() -> None:
    """A task for each policy, all in one world, each with a script of its own."""
    works = await Clockwork.in_memory()
    try:
        await _compare(works)
    finally:
        await works.world.close()


async def _compare(works: Clockwork) -> None:
    expected: dict[str, list[Simulated]] = {}
    for name, policy in POLICIES.items():
        script = _script(name)
        task = await works.store.tasks.definitions.create_task(spec(name))
        lasts = [(60 * long, bad) for long, bad in script]
        times = [at(minute) for minute in range(1, FIRES + 1)]
        expected[name] = simulate(policy, times, lambda us, lasts=lasts: lasts[_nth(us)], task.id)  # type: ignore[misc]
        await works.redefine(spec(name, **{field: getattr(policy, field) for field in Policy.__slots__}))
    await _live_through(works, {name: _script(name) for name in POLICIES})
    records = await works.records()
    for name, fires in expected.items():
        paused = [fire for fire in fires if fire.rule.startswith("failure_action PAUSE: the task")]
        told = [(_minute(f.at), str(f.decision), f.canceled) for f in fires if f not in paused]
        lived = [row for row in records[name] if _minute(row.fire_time) <= FIRES]
        seen = [(_minute(row.fire_time), row.decision, bool(row.superseded)) for row in lived]
        assert seen == told, name
        starts = {f.at: f.start for f in fires if f.start is not None and f.decision is not Decision.SKIP}
        for row in lived:
            if row.started_at is not None:
                assert row.started_at == starts[row.fire_time], f"{name} {_minute(row.fire_time)}"
                del starts[row.fire_time]
        assert not starts, f"{name}: the simulation starts {starts}"


async def _live_through(works: Clockwork, scripts: dict[str, list[tuple[float, bool]]]) -> None:
    """From one event to the next: what ends, then what is due, then what starts, as the simulation has it."""
    names = {row.id: row.name for row in await works.world.rows(tasks)}
    due = [at(minute) for minute in range(1, FIRES + 1)]
    ends: dict[int, tuple[int, bool]] = {}
    while events := [*due[:1], *(end for end, _ in ends.values()), *await _delayed_until(works)]:
        now = min(events)
        await works.go_to((now - at(0)) / MINUTE)
        for run_id, (end, bad) in sorted(ends.items(), key=lambda one: one[1]):
            if end <= now:
                await _end(works, run_id, End.ABANDONED if bad else End.SUCCEEDED)
                del ends[run_id]
        await works.react()
        if due and due[0] == now:
            due.pop(0)
            await works.store.tasks.firing.fire_due()
        for run_id, _ in await works.store.runs.cancel_requests(works.session, list(ends)):
            await _end(works, run_id, End.CANCELED)
            del ends[run_id]
        await works.react()
        await works.claim()
        for run_id in works.held.keys() - ends.keys():
            fire = await works.store.tasks.history.fire_of(run_id)
            assert fire is not None
            minutes, bad = scripts[names[fire.task_id]][_nth(fire.fire_time)]
            ends[run_id] = (now + round(minutes * MINUTE), bad)


async def _end(works: Clockwork, run_id: int, end: End) -> None:
    run = works.held.pop(run_id)
    if end is End.SUCCEEDED:
        await works.world.finish(works.session, run)
    else:
        await works.world.settle(works.session, run, end=end)


async def _delayed_until(works: Clockwork) -> list[int]:
    return [row.due_at for row in await works.world.rows(delayed)]


def _nth(us: int) -> int:
    return (us - at(1)) // MINUTE


def _minute(us: int) -> int:
    return (us - at(0)) // MINUTE
