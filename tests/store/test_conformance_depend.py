"""Tasks that wait for other tasks: for the same time, since their last fire, by each rule, in any order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy.util import await_only

from fusee.engine.model.gate import TriggerRule
from fusee.engine.model.outcome import End
from fusee.engine.store.tables import gates, runs
from fusee.errors import Conflict, Invalid
from fusee.tasks.model import catch_up
from fusee.tasks.model.policy import CatchUp, Overlap
from fusee.tasks.store.tables import task_edges, waits
from tests.store.clockwork import ONCE, Clockwork, at, spec

pytestmark = pytest.mark.asyncio(loop_scope="session")

HELD = "1 run blocked (upstream)"


async def _pair(works: Clockwork, **down: Any) -> None:
    """Both fire every minute; `down` waits for `up`."""
    await works.make("up")
    await works.make("down", cron="* * * * *", after=("up",), **down)


async def _pair_with_down_first(works: Clockwork) -> None:
    """The same, and of two that are due at once, `down` is decided first."""
    await works.make("down")
    await works.make("up")
    await works.change("down", cron="* * * * *", after=("up",))


async def _nothing_waits(works: Clockwork) -> bool:
    return await works.count(gates) == await works.count(waits) == 0


# --- the same logical time -------------------------------------------------------------------------------


async def test_it_runs_when_its_upstream_has_succeeded_for_the_same_time(works: Clockwork) -> None:
    await _pair(works)
    await works.fire_at(1)
    assert await works.record("down") == [HELD]
    assert await works.claim() == ["up 1"]
    await works.succeed("up", 1)
    assert await works.record("down") == ["1 run pending"]
    assert await works.claim() == ["down 1"]
    assert await _nothing_waits(works)


async def test_the_success_of_another_time_does_not_count(works: Clockwork) -> None:
    await works.make("up", max_concurrency=2)
    await works.make("down", cron="* * * * *", after=("up",), max_concurrency=2)
    await works.fire_at(1)
    await works.fire_at(2)
    await works.claim()
    await works.succeed("up", 2)
    assert await works.record("down") == [HELD, "2 run pending"]


@pytest.mark.parametrize("first", ["up", "down"])
async def test_in_whatever_order_the_two_are_decided(works: Clockwork, first: str) -> None:
    await (_pair(works) if first == "up" else _pair_with_down_first(works))
    await works.go_to(1)
    await works.store.tasks.firing.fire_due(limit=1)
    assert list(await works.records()) == [first]
    await works.react()
    await works.fire_at(1)
    await works.claim()
    await works.succeed("up", 1)
    assert await works.claim() == ["down 1"]


async def test_an_upstream_that_had_ended_before_it_fired_lets_it_through(works: Clockwork) -> None:
    """The scan of the downstream task comes late."""
    await works.make("up")
    await works.make("down", cron="* * * * *", after=("up",))
    await works.sql("UPDATE fusee_tasks SET next_fire_at = :at WHERE name = 'down'", at=at(60))
    await works.fire_at(1)
    await works.claim()
    await works.succeed("up", 1)
    await works.sql("UPDATE fusee_tasks SET next_fire_at = :at WHERE name = 'down'", at=at(1))
    await works.go_to(1.1)
    await works.store.tasks.firing.fire_due()
    assert await works.record("down") == [HELD]
    await works.react()
    assert await works.record("down") == ["1 run pending"]


# --- the rules -------------------------------------------------------------------------------------------

ENDS = """
a          b          | all_success all_done any_success
succeeded  succeeded  |   pending    pending   pending
succeeded  failed     |   skipped    pending   pending
failed     succeeded  |   skipped    pending   pending
failed     failed     |   skipped    pending   skipped
succeeded  timed_out  |   skipped    pending   pending
succeeded  canceled   |   skipped    pending   pending
canceled   canceled   |   skipped    pending   skipped
succeeded  skipped    |   skipped    pending   pending
skipped    skipped    |   skipped    pending   skipped
succeeded  missed     |   skipped    pending   pending
missed     failed     |   skipped    pending   skipped
succeeded  -          |   blocked    blocked   pending
failed     -          |   skipped    blocked   blocked
missed     -          |   skipped    blocked   blocked
-          -          |   blocked    blocked   blocked
"""


async def _end(works: Clockwork, ends: dict[str, str]) -> None:
    """Task → how its run of minute 1 ends; all before anyone hears of it."""
    held = {
        name: works.held.pop(row[0].run_id)
        for name, row in (await works.records()).items()
        if row[0].run_id in works.held
    }
    of = {end: [held[name] for name, its in ends.items() if its == end] for end in ends.values()}
    await works.world.finish(works.session, *of["succeeded"])
    for end in (End.FAILED, End.TIMED_OUT, End.SKIPPED):
        await works.world.settle(works.session, *of[end], end=end, policy=ONCE)
    for run in of["canceled"]:
        await works.store.runs.cancel(run.id, "no more of this")
    await works.world.settle(works.session, *of["canceled"], end=End.CANCELED)
    await works.react()


async def test_each_rule_whatever_becomes_of_the_upstreams(works: Clockwork) -> None:
    """Each line of the table is a pair of upstreams, with a downstream task for each rule."""
    lines = [line.split("|") for line in ENDS.strip().splitlines()[1:]]
    rules = (TriggerRule.ALL_SUCCESS, TriggerRule.ALL_DONE, TriggerRule.ANY_SUCCESS)
    ends = {
        f"{name}{n}": end
        for n, line in enumerate(lines)
        for name, end in zip("ab", line[0].split(), strict=True)
    }
    missed = {"catch_up": CatchUp.NONE, "grace": 0.0}
    ups = [works.make(name, **(missed if end == "missed" else {})) for name, end in ends.items()]
    await asyncio.gather(*ups)
    downs = [
        works.make(f"{rule}{n}", cron="* * * * *", after=(f"a{n}", f"b{n}"), trigger_rule=rule)
        for n in range(len(lines))
        for rule in rules
    ]
    await asyncio.gather(*downs)
    await works.fire_at(1 + 1 / 60)
    await works.claim()
    await _end(works, {name: end for name, end in ends.items() if end not in ("-", "missed")})
    record = await works.records()
    for n, (pair, answers) in enumerate(lines):
        for rule, answer in zip(rules, answers.split(), strict=True):
            (fire,) = record[f"{rule}{n}"]
            assert fire.status == answer, f"{pair}, {rule}"


async def test_shut_out_it_says_because_of_whom(works: Clockwork) -> None:
    await _pair(works)
    await works.fire_at(1)
    await works.claim()
    await works.fail("up", 1)
    run = await works.run_of("down", 1)
    assert (run.status, run.reason) == ("skipped", "trigger_rule all_success: up did not succeed")
    assert (await works.task("down")).last_status is None, "it did nothing that could fail"
    assert await _nothing_waits(works)


async def test_shut_out_frees_its_place_for_the_next_fire(works: Clockwork) -> None:
    await _pair(works)
    await works.fire_at(1)
    await works.claim()
    await works.fail("up", 1)
    await works.fire_at(2)
    assert await works.record("down") == ["1 skip skipped", "2 run blocked (upstream)"]


async def test_an_upstream_that_its_policy_leaves_out_shuts_out_who_waits_for_it(works: Clockwork) -> None:
    await works.make("up", overlap=Overlap.SKIP)
    await works.make("down", cron="* * * * *", after=("up",), max_concurrency=0)
    await works.fire_at(1)
    await works.fire_at(2)
    assert await works.record("up") == ["1 run pending", "2 skip skipped"]
    assert await works.record("down") == [HELD, "2 skip skipped"]


@pytest.mark.parametrize("verb", ["pause", "disable"])
async def test_an_upstream_that_is_stopped_before_it_was_decided_shuts_out_who_waits(
    works: Clockwork, verb: str
) -> None:
    await _pair_with_down_first(works)
    await works.go_to(1)
    await works.store.tasks.firing.fire_due(limit=1)
    await works.react()
    assert await works.record("down") == [HELD]
    await works.store.tasks.steering.steer_task("up", verb)
    assert await works.record("up") == ["1 miss missed"]
    await works.react()
    assert await works.record("down") == ["1 skip skipped"]


@pytest.mark.parametrize("first", ["up", "down"])
async def test_an_upstream_missed_among_many_shuts_out_who_waits_for_it(
    works: Clockwork, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """One row tells of most that were missed in a long outage, whichever of the two is decided first."""
    monkeypatch.setattr(catch_up, "MOST_ROWS", 50)
    await works.make("down", cron="*/10 * * * *")
    await works.make("up", cron="* * * * * *", catch_up_cap=5)
    policies = {"max_concurrency": 0, "catch_up": CatchUp.FULL}
    await works.change("down", cron="*/10 * * * *", after=("up",), **policies)
    if first == "down":  # of two that are due at once, the older task
        await works.sql("UPDATE fusee_tasks SET next_fire_at = :at WHERE name = 'up'", at=at(10))
    await works.go_to(50.5)
    await works.store.tasks.firing.fire_due(limit=1)
    assert list(await works.records()) == [first]
    await works.react()
    await works.fire_at(50.5)
    assert await works.count(gates) == 0
    assert await works.record("down") == [f"{minute} skip skipped" for minute in (10, 20, 30, 40, 50)]


# --- mixed schedules -------------------------------------------------------------------------------------


async def test_with_another_schedule_any_success_since_its_previous_fire_will_do(works: Clockwork) -> None:
    await works.make("up", cron="*/2 * * * *")
    await works.make("down", cron="1-59/4 * * * *", after=("up",))  # 1, 5, 9
    await works.fire_at(1)
    assert await works.record("down") == [HELD], "none has fired since it was made"
    await works.fire_at(2)
    await works.claim()
    await works.succeed("up", 2)
    assert await works.record("down") == ["1 run pending"]
    await works.claim()
    await works.succeed("down", 1)
    await works.fire_at(4)
    await works.claim()
    await works.succeed("up", 4)
    await works.fire_at(5)
    assert (await works.record("down"))[1] == "5 run pending", "4 is since 1"
    await works.claim()
    await works.succeed("down", 5)
    await works.fire_at(9)
    await works.claim()
    await works.fail("up", 8)
    assert (await works.record("down"))[2] == "9 run blocked (upstream)", "a failure decides nothing"
    await works.fire_at(10)
    await works.claim()
    await works.succeed("up", 10)
    assert (await works.record("down"))[2] == "9 run pending"


async def test_with_another_schedule_all_done_takes_any_end(works: Clockwork) -> None:
    await works.make("up", cron="*/2 * * * *")
    await works.make("down", cron="3 * * * *", after=("up",), trigger_rule=TriggerRule.ALL_DONE)
    await works.fire_at(2)
    await works.claim()
    await works.fail("up", 2)
    await works.fire_at(3)
    assert await works.record("down") == ["3 run pending"]


async def test_two_fires_of_one_upstream_that_end_together_count_as_one_upstream(works: Clockwork) -> None:
    await works.make("up", cron="*/2 * * * *", max_concurrency=0)
    await works.make("other", cron="*/2 * * * *", max_concurrency=0)
    await works.make("down", cron="5 * * * *", after=("up", "other"))
    await works.fire_at(2)
    await works.fire_at(4)
    await works.claim()
    await works.fire_at(5)
    both = [works.held.pop((await works.run_of("up", minute)).id) for minute in (2, 4)]
    await works.world.finish(works.session, *both)
    await works.react()
    assert await works.record("down") == ["5 run blocked (upstream)"]
    await works.succeed("other", 4)
    assert await works.record("down") == ["5 run pending"]


# --- after, without a schedule -----------------------------------------------------------------------------


async def test_a_task_without_a_schedule_fires_when_what_it_follows_has_ended(works: Clockwork) -> None:
    await works.make("up")
    await works.make("down", after=("up",))
    await works.fire_at(1)
    assert await works.record("down") == []
    await works.claim()
    await works.go_to(1.5)
    await works.succeed("up", 1)
    assert await works.record("down") == ["1 run pending"], "for the time of the fire it follows"
    (fire,) = await works.shards_of("down", 1)
    assert (fire.cause, fire.code, fire.decided_at) == ("after", "after", at(1.5))
    assert await _nothing_waits(works)


async def test_following_several_it_fires_once_for_a_time(works: Clockwork) -> None:
    for name in "abc":
        await works.make(name)
    await works.make("down", after=("a", "b", "c"))
    await works.fire_at(1)
    await works.claim()
    await works.succeed("a", 1)
    assert await works.record("down") == [HELD]
    await works.succeed("b", 1)
    await works.succeed("c", 1)
    assert await works.record("down") == ["1 run pending"]


async def test_a_failure_makes_it_fire_and_be_skipped_on_record(works: Clockwork) -> None:
    await works.make("up")
    await works.make("down", after=("up",))
    await works.make("cleanup", after=("up",), trigger_rule=TriggerRule.ALL_DONE)
    await works.fire_at(1)
    await works.claim()
    await works.fail("up", 1)
    assert await works.record("down") == ["1 skip skipped"]
    assert await works.record("cleanup") == ["1 run pending"]


async def test_a_diamond(works: Clockwork) -> None:
    await works.make("a")
    await works.make("b", after=("a",))
    await works.make("c", after=("a",))
    await works.make("d", after=("b", "c"))
    await works.fire_at(1)
    for wave in (["a 1"], ["b 1", "c 1"], ["d 1"]):
        assert sorted(await works.claim()) == wave
        for one in wave:
            await works.succeed(one.split()[0], 1)
    assert await works.record("d") == ["1 run succeeded"]
    assert await _nothing_waits(works)


async def test_an_uneven_diamond_is_decided_by_the_same_time(works: Clockwork) -> None:
    """`d` fires when `b` ends; the longer way to it fails later, for the same time."""
    await works.make("a")
    await works.make("b", after=("a",))
    await works.make("x", after=("a",))
    await works.make("c", after=("x",))
    await works.make("d", after=("b", "c"))
    await works.fire_at(1)
    await works.claim()
    await works.succeed("a", 1)
    await works.claim()
    await works.succeed("b", 1)
    assert await works.record("d") == [HELD]
    await works.succeed("x", 1)
    await works.claim()
    await works.fail("c", 1)
    assert await works.record("d") == ["1 skip skipped"]


async def test_a_stopped_task_follows_nobody(works: Clockwork) -> None:
    await works.make("up")
    await works.make("down", after=("up",))
    await works.store.tasks.steering.steer_task("down", "pause")
    await works.fire_at(1)
    await works.claim()
    await works.succeed("up", 1)
    assert await works.record("down") == []


async def test_it_follows_a_fire_by_hand_too(works: Clockwork) -> None:
    await works.make("up", manual=True)
    await works.make("down", after=("up",))
    await works.go_to(0.5)
    await works.store.tasks.triggers.trigger("up")
    await works.claim()
    await works.succeed("up", 0.5)
    assert await works.record("down") == ["0.5 run pending"]


async def test_fired_by_hand_it_waits_for_nobody(works: Clockwork) -> None:
    await _pair(works)
    await works.go_to(0.5)
    await works.store.tasks.triggers.trigger("down")
    assert await works.record("down") == ["0.5 run pending"]


# --- together with the line --------------------------------------------------------------------------------


async def test_out_of_the_line_it_waits_for_its_upstream(works: Clockwork) -> None:
    await works.make("up", max_concurrency=0)
    await works.make("down", cron="* * * * *", after=("up",))
    await works.fire_at(1)
    await works.fire_at(2)
    assert await works.record("down") == [HELD, "2 queue blocked (queue)"]
    await works.claim()
    await works.succeed("up", 1)
    await works.claim()
    await works.succeed("down", 1)
    assert await works.record("down") == ["1 run succeeded", "2 queue blocked (upstream)"]
    await works.succeed("up", 2)
    assert await works.record("down") == ["1 run succeeded", "2 queue pending"]


async def test_out_of_the_line_it_runs_at_once_when_its_upstream_has_succeeded_long_ago(
    works: Clockwork,
) -> None:
    await works.make("up", max_concurrency=0)
    await works.make("down", cron="* * * * *", after=("up",))
    for minute in (1, 2):
        await works.fire_at(minute)
        await works.claim()
        await works.succeed("up", minute)
    await works.claim()
    assert await works.record("down") == ["1 run running", "2 queue blocked (queue)"]
    await works.succeed("down", 1)
    assert await works.record("down") == ["1 run succeeded", "2 queue pending"]


async def test_in_line_a_fire_of_another_schedule_waits_since_the_fire_before_it(works: Clockwork) -> None:
    """Not since the latest one: that is itself."""
    await works.make("up", cron="2 * * * *")
    await works.make("down", cron="*/5 * * * *", after=("up",))  # 5, 10
    await works.fire_at(2)
    await works.claim()
    await works.succeed("up", 2)
    await works.fire_at(5)
    await works.claim()
    await works.change("up", cron="7 * * * *")
    await works.fire_at(7)
    await works.claim()
    await works.succeed("up", 7)
    await works.fire_at(10)
    assert await works.record("down") == ["5 run running", "10 queue blocked (queue)"]
    await works.succeed("down", 5)
    assert await works.record("down") == ["5 run succeeded", "10 queue pending"], "7 is since 5"


async def test_by_hand_and_in_line_it_still_waits_for_nobody(works: Clockwork) -> None:
    await works.make("up")
    await works.make("down", after=("up",))
    await works.go_to(0.5)
    await works.store.tasks.triggers.trigger("down")
    await works.claim()
    await works.go_to(0.6)
    await works.store.tasks.triggers.trigger("down")
    assert await works.record("down") == ["0.5 run running", "0.6 queue blocked (queue)"]
    await works.succeed("down", 0.5)
    assert await works.record("down") == ["0.5 run succeeded", "0.6 queue pending"]


async def test_each_shard_waits_and_all_go_together(works: Clockwork) -> None:
    await _pair(works, shards=3)
    await works.fire_at(1)
    assert await works.record("down") == ["1 run blocked blocked blocked (upstream)"]
    await works.cancel("down", 1, shard=1)
    await works.claim()
    await works.succeed("up", 1)
    assert await works.record("down") == ["1 run pending canceled pending"]
    assert await _nothing_waits(works)


async def test_an_upstream_of_many_shards_has_ended_when_all_have(works: Clockwork) -> None:
    await works.make("up", shards=2)
    await works.make("down", cron="* * * * *", after=("up",))
    await works.fire_at(1)
    await works.claim()
    await works.succeed("up", 1, shard=1)
    assert await works.record("down") == [HELD]
    await works.succeed("up", 1, shard=0)
    assert await works.record("down") == ["1 run pending"]


async def test_canceled_while_it_waits_it_leaves_nothing_behind(works: Clockwork) -> None:
    await _pair(works)
    await works.fire_at(1)
    await works.cancel("down", 1)
    assert await works.record("down") == ["1 run canceled"]
    assert await _nothing_waits(works)


async def test_replaced_while_it_waits_it_leaves_nothing_behind(works: Clockwork) -> None:
    await works.make("up", max_concurrency=0)
    await works.make("down", cron="* * * * *", after=("up",), overlap=Overlap.CANCEL_PREV)
    await works.fire_at(1)
    await works.fire_at(2)
    assert await works.record("down") == ["1 run canceled", "2 run blocked (upstream)"]
    assert await works.count(gates) == 1
    await works.claim()
    await works.succeed("up", 1)
    assert (await works.record("down"))[1] == "2 run blocked (upstream)"
    await works.succeed("up", 2)
    assert (await works.record("down"))[1] == "2 run pending"


async def test_a_rate_holds_also_for_what_waited(works: Clockwork) -> None:
    await works.make("up", max_concurrency=0)
    await works.make("down", cron="* * * * *", after=("up",), max_concurrency=0, rate=1 / 120)
    await works.fire_at(1)
    await works.fire_at(2)
    await works.claim()
    await works.succeed("up", 1)
    await works.succeed("up", 2)
    assert await works.record("down") == ["1 run pending", "2 run delayed"]
    assert (await works.run_of("down", 2)).due_at == at(3)


# --- the race: the upstream ends while the dependent fire is being made -------------------------------


Half = Callable[[], Awaitable[Any]]


@pytest.mark.parametrize("engine", ["postgres", "mysql"], indirect=True)
@pytest.mark.parametrize("first", ["the fire", "the end"])
async def test_of_a_fire_and_an_end_at_the_same_moment_one_sees_the_other(
    works: Clockwork, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Both transactions are open at once; whichever commits first, nobody waits for ever."""
    other = await works.world.another()
    await works.make("up")
    await works.make("down", cron="* * * * *", after=("up",))
    await works.sql("UPDATE fusee_tasks SET next_fire_at = :at WHERE name = 'down'", at=at(60))
    await works.fire_at(1)
    await works.claim()
    await works.sql("UPDATE fusee_tasks SET next_fire_at = :at WHERE name = 'down'", at=at(1))
    await works.world.finish(works.session, works.held.pop((await works.run_of("up", 1)).id))

    ready, go = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hold(step: Callable[..., Any]) -> Callable[..., Any]:
        """After its last statement, the transaction waits for the other to commit."""

        def held(connection: Any, *args: Any, **kwargs: Any) -> Any:
            answer = step(connection, *args, **kwargs)
            loop.call_soon(ready.set)
            await_only(go.wait())
            return answer

        return held

    slow, quick = (
        (works.store.tasks.firing.fire_due, other.aggregation.aggregate)
        if first == "the end"
        else (works.store.aggregation.aggregate, other.tasks.firing.fire_due)
    )
    part, step = (
        (works.store.tasks.firing, "_fire_due") if first == "the end" else (works.store.aggregation, "_react")
    )
    monkeypatch.setattr(part, step, hold(getattr(part, step)))
    held = asyncio.create_task(slow())  # type: ignore[arg-type]
    await ready.wait()
    await quick()
    go.set()
    await held
    monkeypatch.undo()
    await works.react()
    assert await works.record("down") == ["1 run pending"]
    assert await _nothing_waits(works)


@pytest.mark.parametrize("engine", ["postgres", "mysql"], indirect=True)
async def test_a_gate_is_looked_at_while_its_upstream_ends(
    works: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The aggregator that looks at the new gate finds the upstream's row held by the one that ends it: it
    waits for that end, and counts it."""
    other = await works.world.another()
    await works.make("up")
    await works.make("down", cron="* * * * *", after=("up",))
    await works.fire_at(1)
    await works.sql(
        "INSERT INTO fusee_outbox (kind, run_id) VALUES ('gate', :run)",
        run=(await works.run_of("down", 1)).id,
    )
    await works.claim()
    await works.world.finish(works.session, works.held.pop((await works.run_of("up", 1)).id))
    ready, go = asyncio.Event(), asyncio.Event()
    inner = works.store.tasks.states.load

    def held(connection: Any, *args: Any) -> Any:
        ready.set()
        await_only(go.wait())
        return inner(connection, *args)

    monkeypatch.setattr(works.store.tasks.states, "load", held)
    ending = asyncio.create_task(works.store.aggregation.aggregate())
    await ready.wait()
    looking = asyncio.create_task(
        other.database.write(lambda c: other.aggregation._react(c, "gate", 500, ""))
    )
    done, _ = await asyncio.wait([looking], timeout=0.1)
    assert not done, "it waits for the upstream's row"
    go.set()
    await asyncio.gather(ending, looking)
    monkeypatch.undo()
    await works.react()
    assert await works.record("down") == ["1 run pending"]


async def test_many_upstreams_and_two_aggregators(works: Clockwork) -> None:
    other = await works.world.another()
    names = [f"up{n}" for n in range(8)]
    for name in names:
        await works.make(name)
    for n in range(4):
        await works.make(f"down{n}", cron="* * * * *", after=tuple(names))
    await works.fire_at(1)
    await works.claim()
    mine = [works.held.pop((await works.run_of(name, 1)).id) for name in names]
    for one in mine:
        await works.world.finish(works.session, one)
        await asyncio.gather(works.store.aggregation.aggregate(limit=1), other.aggregation.aggregate(limit=1))
    await works.react()
    assert [await works.record(f"down{n}") for n in range(4)] == [["1 run pending"]] * 4
    assert await _nothing_waits(works)


# --- the graph ---------------------------------------------------------------------------------------------


async def test_an_upstream_has_to_exist(works: Clockwork) -> None:
    with pytest.raises(Invalid, match="after names 'nobody', which is no task: create it first"):
        await works.make("t", after=("nobody",))
    assert await works.count(task_edges) == 0
    await works.make("t")
    with pytest.raises(Invalid, match="which is no task"):
        await works.change("t", after=("nobody",))


async def test_a_cycle_is_refused_and_shown(works: Clockwork) -> None:
    await works.make("a")
    await works.make("b", after=("a",))
    await works.make("c", after=("b",))
    with pytest.raises(Invalid, match=r"after would close a cycle: a → b → c → a"):
        await works.change("a", after=("c",))
    assert (await works.task("a")).spec.after == ()
    await works.change("c", manual=True)
    await works.change("a", after=("c",))
    with pytest.raises(Invalid, match="cycle"):
        await works.change("c", after=("b",))


async def test_two_edits_that_together_close_a_cycle_are_never_both_taken(works: Clockwork) -> None:
    other = await works.world.another()
    for n in range(8):
        for name in "abcd":
            await works.make(f"{name}{n}", manual=True)
        await works.change(f"b{n}", after=(f"a{n}",))
        await works.change(f"d{n}", after=(f"c{n}",))
        edits = await asyncio.gather(
            works.store.tasks.steering.update_task(f"a{n}", spec(f"a{n}", after=(f"d{n}",)), None),
            other.tasks.steering.update_task(f"c{n}", spec(f"c{n}", after=(f"b{n}",)), None),
            return_exceptions=True,
        )
        assert sorted(type(one).__name__ for one in edits) == ["Invalid", "Task"], edits


async def test_an_upstream_cannot_go_while_someone_begins_to_wait_for_it(works: Clockwork) -> None:
    other = await works.world.another()
    for n in range(5):
        await works.make(f"up{n}", manual=True)
        await works.make(f"down{n}", manual=True)
        answers = await asyncio.gather(
            works.store.tasks.steering.steer_task(f"up{n}", "delete"),
            other.tasks.steering.update_task(f"down{n}", spec(f"down{n}", after=(f"up{n}",)), None),
            return_exceptions=True,
        )
        refused = [one for one in answers if isinstance(one, Exception)]
        assert len(refused) == 1 and isinstance(refused[0], Conflict | Invalid), answers


async def test_what_was_made_waits_for_what_it_was_made_for(works: Clockwork) -> None:
    """Taken out of `after`, the upstream still decides about the fire that was made before."""
    await _pair(works)
    await works.fire_at(1)
    await works.change("down", cron="* * * * *")
    await works.fire_at(2)
    assert await works.record("down") == [HELD, "2 queue blocked (queue)"]
    await works.claim()
    await works.succeed("up", 1)
    assert await works.record("down") == ["1 run pending", "2 queue blocked (queue)"]
    await works.claim()
    await works.succeed("down", 1)
    assert await works.record("down") == ["1 run succeeded", "2 queue pending"]


async def test_an_upstream_that_is_deleted_shuts_out_who_still_waits_for_it(works: Clockwork) -> None:
    await _pair(works)
    await works.fire_at(1)
    await works.change("down", cron="* * * * *")
    await works.store.tasks.steering.steer_task("up", "delete")
    await works.react()
    assert await works.record("down") == ["1 skip skipped"]
    assert await _nothing_waits(works)


async def test_runs_of_all_statuses_are_accounted_for(works: Clockwork) -> None:
    """Nothing that a task made is forgotten: each run is ended, or says what it waits for."""
    await _pair(works)
    await works.fire_at(1)
    await works.fire_at(2)
    for run in await works.world.rows(runs):
        if run.status == "blocked":
            assert run.reason, run.id
