"""Choosing a worker: filters first, then the strategy; nothing is given to who cannot hold it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusee.engine.model.queue import Need, Strategy
from fusee.engine.model.run import Lane, RunSpec
from fusee.engine.model.session import WorkerInfo
from fusee.placement.placing import Candidate, Chooser, serves
from fusee.tasks.model.task import TaskSpec

LANE = Lane("default", "mail", "python", "send")


def worker(name: str, **fields: object) -> WorkerInfo:
    known: dict[str, object] = {
        "host": "h",
        "pid": 1,
        "version": "1",
        "capacity": 4,
        "executors": ("http", "python"),
        "handlers": ("send",),
        "queues": ("*",),
    }
    return WorkerInfo(name=name, **{**known, **fields})  # type: ignore[arg-type]


def candidate(name: str, held: int = 0, session: int = 1, **fields: object) -> Candidate:
    info = worker(name, **fields)
    return Candidate(session, info, held, 2 * info.capacity, info.cpu, info.memory)


def chosen(chooser: Chooser, count: int, need: Need = Need(), key: str = "") -> list[str]:  # noqa: B008
    found = [chooser.choose(need, key) for _ in range(count)]
    return [one.name if one else "-" for one in found]


# -- filters


@pytest.mark.parametrize(
    ("fields", "lane", "fits"),
    [
        ({}, LANE, True),
        ({"queues": ("default",)}, LANE, False),
        ({"handlers": ("other",)}, LANE, False),
        ({"handlers": ()}, Lane("default", "mail", "http", "http"), True),
        ({"executors": ("python",)}, Lane("default", "mail", "http", "http"), False),
        ({"region": "eu"}, LANE, True),
        ({"region": "eu"}, Lane("default", "mail", "python", "send", "eu"), True),
        ({"region": "us"}, Lane("default", "mail", "python", "send", "eu"), False),
        ({}, Lane("default", "mail", "python", "send", "eu"), False),
        ({"region": "eu"}, Lane("default", "mail", "python", "send", "eu", "round_robin"), True),
    ],
)
def test_who_serves_a_lane(fields: dict[str, object], lane: Lane, fits: bool) -> None:
    assert serves(worker("w", **fields), lane) is fits


PLACING = [strategy for strategy in Strategy if strategy is not Strategy.BROADCAST]


@pytest.mark.parametrize("strategy", PLACING)
def test_no_strategy_gives_to_who_cannot(strategy: Strategy) -> None:
    chooser = Chooser(
        strategy,
        LANE,
        [
            candidate("other-queue", queues=("x",)),
            candidate("full", held=8),
            candidate("small", cpu=1.0),
            candidate("undeclared"),
        ],
    )
    assert chooser.choose(Need(cpu=2.0), "k") is None


@given(
    strategy=st.sampled_from(PLACING),
    workers=st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(1, 8), st.integers(0, 64))),
    needs=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 32)), max_size=60),
)
def test_nobody_is_given_more_than_it_has(
    strategy: Strategy, workers: dict[str, tuple[int, int]], needs: list[tuple[int, int]]
) -> None:
    all_of_them = [candidate(name, cpu=float(cpu), memory=memory) for name, (cpu, memory) in workers.items()]
    chooser = Chooser(strategy, LANE, all_of_them)
    given_to: dict[str, list[Need]] = {}
    for n, (cpu, memory) in enumerate(needs):
        need = Need(float(cpu), memory)
        if (one := chooser.choose(need, f"k{n}")) is not None:
            given_to.setdefault(one.name, []).append(need)
    for one in all_of_them:
        mine = given_to.get(one.name, [])
        assert sum(need.cpu for need in mine) <= (one.info.cpu or 0)
        assert sum(need.memory for need in mine) <= (one.info.memory or 0)
        assert len(mine) <= one.most


# -- round robin


def test_round_robin_goes_round() -> None:
    chooser = Chooser(Strategy.ROUND_ROBIN, LANE, [candidate(name) for name in "cab"])
    assert chosen(chooser, 7) == list("abcabca")


def test_round_robin_goes_on_where_it_was() -> None:
    """What was given last is kept, also when that worker has left meanwhile."""
    assert chosen(Chooser(Strategy.ROUND_ROBIN, LANE, [candidate(n) for n in "abcd"], "b"), 3) == list("cda")
    assert chosen(Chooser(Strategy.ROUND_ROBIN, LANE, [candidate(n) for n in "acd"], "b"), 3) == list("cda")
    assert chosen(Chooser(Strategy.ROUND_ROBIN, LANE, [candidate(n) for n in "ab"], "z"), 2) == list("ab")


def test_round_robin_passes_over_the_full() -> None:
    chooser = Chooser(Strategy.ROUND_ROBIN, LANE, [candidate("a"), candidate("b", held=8), candidate("c")])
    assert chosen(chooser, 4) == list("acac")


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(2, 6))
def test_round_robin_is_fair_over_many_passes(portions: list[int], size: int) -> None:
    """However the runs come, in however many passes: nobody is ever two ahead of another."""
    counts, turn = Counter({f"w{n}": 0 for n in range(size)}), None
    for portion in portions:
        chooser = Chooser(Strategy.ROUND_ROBIN, LANE, [candidate(name, capacity=99) for name in counts], turn)
        counts.update(chosen(chooser, portion))
        turn = chooser.turn
        assert max(counts.values()) - min(counts.values()) <= 1


# -- least loaded


def test_least_loaded_goes_by_the_share_of_slots() -> None:
    chooser = Chooser(
        Strategy.LEAST_LOADED,
        LANE,
        [candidate("big", held=10, capacity=100), candidate("small", held=1, capacity=4)],
    )
    assert chosen(chooser, 16).count("big") == 16, "25 of 100 are as much as 1 of 4"


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(1, 80))
def test_least_loaded_levels(capacities: list[int], count: int) -> None:
    workers = [candidate(f"w{n}", capacity=c) for n, c in enumerate(capacities)]
    chooser = Chooser(Strategy.LEAST_LOADED, LANE, workers)
    chosen(chooser, count)
    for one in workers:
        for other in workers:
            if other.held < other.most:
                assert (one.held - 1) / one.info.capacity <= other.load + 1e-9


# -- affinity and consistent hashing


def test_affinity_stays_with_one_worker_and_spills_over_when_it_is_full() -> None:
    chooser = Chooser(Strategy.AFFINITY, LANE, [candidate(name) for name in "abc"])
    went = chosen(chooser, 25)
    assert [went.count(name) for name in dict.fromkeys(went)] == [8, 8, 8, 1]
    assert went[-1] == "-", "nobody has room: it waits"
    firsts = {
        Chooser(Strategy.AFFINITY, Lane("default", "q", "python", f"h{n}"), workers).choose().name  # type: ignore[union-attr]
        for n in range(40)
        if (workers := [candidate(name, handlers=(f"h{n}",)) for name in "abc"])
    }
    assert firsts == set("abc"), "other handlers have other homes"


def test_a_key_waits_for_its_worker() -> None:
    workers = [candidate(name) for name in "abcd"]
    chooser = Chooser(Strategy.CONSISTENT_HASH, LANE, workers)
    home = chooser.choose(key="user-7")
    assert home is not None
    home.held = home.most
    assert chooser.choose(key="user-7") is None
    assert any(chooser.choose(key=f"user-{n}") for n in range(20)), "others go on"


def test_a_key_whose_worker_could_never_hold_the_run_goes_to_the_next() -> None:
    small, large = candidate("small", memory=1), candidate("large", memory=100)
    for n in range(20):
        one = Chooser(Strategy.CONSISTENT_HASH, LANE, [small, large]).choose(Need(memory=1 + n % 2), f"k{n}")
        large.memory, small.memory, large.held, small.held = 100, 1, 0, 0
        assert one is not None and (n % 2 == 0 or one.name == "large")


# -- broadcast, and names


def test_a_broadcast_is_for_everyone_who_is_able_however_busy() -> None:
    chooser = Chooser(
        Strategy.BROADCAST,
        LANE,
        [candidate("a", held=8), candidate("b", memory=10), candidate("c", queues=("x",))],
    )
    assert [one.name for one in chooser.everyone()] == ["a", "b"]
    assert [one.name for one in chooser.everyone(Need(memory=5))] == ["b"]
    assert chooser.pinned("b", Need(memory=11)) is None and chooser.pinned("nobody") is None
    assert chooser.pinned("b", Need(memory=6)) is not None
    assert chooser.pinned("b", Need(memory=6)) is None, "it has four left"


def test_of_two_processes_with_one_name_the_newer_counts() -> None:
    chooser = Chooser(Strategy.ROUND_ROBIN, LANE, [candidate("w", session=2), candidate("w", session=1)])
    assert {one.session for _ in range(4) if (one := chooser.choose())} == {2}


# -- what may be asked


def test_what_asks_for_resources_is_placed() -> None:
    assert RunSpec(handler="h").strategy == ""
    assert RunSpec(handler="h", cpu=1).strategy == "least_loaded"
    assert RunSpec(handler="h", memory=1, strategy="round_robin").strategy == "round_robin"
    assert RunSpec(handler="h", hash_key="k").strategy == "consistent_hash"
    assert TaskSpec(name="t", handler="h", cpu=0.5).strategy == "least_loaded"
    assert RunSpec(handler="h", cpu=1, hash_key="k").options() == {"cpu": 1, "hash_key": "k"}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"strategy": "fastest"}, "strategy must be one of shared, round_robin"),
        ({"cpu": 0}, "cpu must be a number of cores above 0"),
        ({"memory": 1.5}, "memory must be a size such as 512MB"),
        ({"cpu": 1, "strategy": "shared"}, "not shared"),
        ({"hash_key": "k", "strategy": "round_robin"}, "hash_key goes with strategy consistent_hash"),
        ({"strategy": "affinity", "region": "r" * 101}, "region must be at most 100"),
    ],
)
def test_what_is_refused(fields: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        RunSpec(handler="h", **fields)  # type: ignore[arg-type]


def test_a_broadcast_has_no_shards() -> None:
    with pytest.raises(ValueError, match="cannot stand beside shards"):
        TaskSpec(name="t", handler="h", strategy="broadcast", shards=2)


@given(st.sampled_from(["", "eu"]), st.sampled_from(["", *Strategy]))
def test_a_lane_is_the_same_after_it_was_stored(region: str, strategy: str) -> None:
    lane = Lane("n", "q", "python", "h", region, strategy)
    assert Lane.at("n", "q", "python", "h", lane.place) == lane
    assert (lane.place == region) == (strategy == ""), "an older version takes it for another region"
