"""A queue that does not move is noticed, told of once, and forgotten when it moves again."""

from __future__ import annotations

import pytest

from fusee.app.stalls import Stalls
from fusee.engine.model.queue import QueueLimits
from fusee.engine.store.runs import RunFilter
from fusee.events import Bus, QueuesStalled
from fusee.observe.health import Health
from tests.store.harness import World

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_queue_has_stalled_when_its_oldest_run_waits_too_long(world: World) -> None:
    await world.enqueue(queue="mail")
    await world.clock.tick(200)
    await world.enqueue(queue="reports")
    await world.clock.tick(150)
    assert await world.store.aging.stalled(300) == {("default", "mail"): 350.0}
    await world.store.queues.set_limits("mail", QueueLimits(paused=True))
    assert await world.store.aging.stalled(300) == {}, "a paused queue is meant to stand still"


async def test_it_is_told_of_once_and_shown_until_it_moves(world: World) -> None:
    bus = Bus()
    told: list[QueuesStalled] = []
    bus.subscribe(QueuesStalled, told.append)

    async def nothing() -> None: ...

    async def fits() -> tuple[str, str]:
        return "1", "1"

    health = Health(bus, ping=nothing, revision=fits)
    watch = Stalls(world.store, bus, after=300, webhook="https://alerts.example/hook")
    other = Stalls(world.store, Bus(), after=300, webhook="https://alerts.example/hook")
    await world.enqueue(queue="mail")
    await world.clock.tick(301)
    for one in (watch, other, watch):
        await one.run_once()
    assert [event.new for event in told] == [(("default", "mail"),), ()]
    assert "queue mail of default has stalled" in health.warnings("default")[0]
    assert health.warnings("other") == []
    assert "1 queue has stalled" in health.warnings()[0] and "mail" not in health.warnings()[0]
    alerts = [run for run in await world.store.runs.runs(RunFilter()) if run.queue == "fusee.alerts"]
    assert len(alerts) == 1, "two dispatchers, one alert"
    session = await world.session()
    await world.finish(session, *await world.claim(session, lanes=await world.lane_ids(queue="mail")))
    await watch.run_once()
    assert health.warnings() == []
