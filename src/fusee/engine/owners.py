"""Owners: the one door from the engine to the kinds of work that its runs belong to.

The engine knows runs and nothing else. A run that belongs to a task, a batch, a bulk job or a workflow
carries the name of that kind. Each kind registers one `Owner` with the store, and the engine asks it whatever
depends on the kind: what follows when runs end, whether an attempt may be retried, which runs are still
needed, and what the parent of a started thing hears. A new kind of work is a new owner; the engine does not
change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row

from fusee.engine.model.run import Run, RunKind
from fusee.engine.model.states import RunStatus
from fusee.engine.store.contract import Settlement
from fusee.errors import Conflict

__all__ = ["Judged", "Owner", "Owners", "Reaction", "Retried"]

Judged = tuple[Settlement, Any]
"""A verdict about an attempt, and the row of its run (locked)."""

Reaction = Callable[[Connection, Sequence[Row[Any]], int], Collection[int]]
"""Called with outbox rows of one topic (`run_id`, `fire_time`, `many`) and the time, in the transaction that
deletes these rows. It returns the run ids whose rows stay because they must be looked at again."""


@dataclass(frozen=True, slots=True)
class Retried:
    """The new run; `rule` says what the policies of its task decided, when it has one."""

    id: int
    status: RunStatus = RunStatus.PENDING
    rule: str | None = None
    created: bool = True


class Owner:
    """One kind of work. Every method has a default: a kind overrides only what concerns it."""

    kind: str
    """The kind that its runs carry. Plain successes are written to the outbox under this topic: one row per
    owner with a count where runs have an `owner_id`, else one row per run."""

    @property
    def run_kind(self) -> RunKind:
        """What workers and logs know about this kind."""
        return RunKind(self.kind)

    @property
    def end_topic(self) -> str:
        """The outbox topic of its runs that ended in any way but plain success; one row per run."""
        return self.kind

    def reactions(self) -> Mapping[str, Reaction]:
        """What it does about each outbox topic that it reads, its own or one that it writes itself."""
        return {}

    def of_this_region(self, topic: str, region: str) -> Sequence[ColumnElement[bool]]:
        """Conditions on outbox rows: those that belong to another region are left to its dispatchers."""
        return ()

    def before_retry(self, connection: Connection, retried: Sequence[Judged]) -> Sequence[Judged]:
        """Called before attempts of its runs are retried; it may turn a verdict into a final one."""
        return retried

    def parents_due(self, connection: Connection, run_ids: Sequence[int], now: int) -> Collection[int]:
        """End those of these runs that started one of its things which is over, and abandon the things of
        those that are over themselves. Returns the runs to look at again: their attempt still runs."""
        return ()

    def needed(self, connection: Connection, run_ids: Sequence[int]) -> Collection[int]:
        """Those of these finished runs that must not be deleted yet."""
        return ()

    def runs_released(self, connection: Connection, run_ids: Sequence[int], now: int) -> None:
        """These blocked runs may start now."""

    def runs_skipped(self, connection: Connection, run_ids: Sequence[int], code: str, reason: str) -> None:
        """These blocked runs will never start, and why."""

    def gates_forgotten(self, connection: Connection, run_ids: Sequence[int]) -> None:
        """These runs wait for others no longer: delete the rows that say for what they waited."""

    def forget_runs(self, connection: Connection, run_ids: Sequence[int]) -> None:
        """These runs are being deleted: delete the rows that this kind keeps about them."""

    def forget_old(self, connection: Connection, cutoff: int, most: int) -> int:
        """Delete its own rows that ended before `cutoff`, about `most` of them; returns how many."""
        return 0

    async def retry(self, run: Run, idempotency_key: str | None) -> Retried:
        """Retry a run of this kind by its rules. Where it has a command for that, refuse and name it: a plain
        copy of the run would escape the rules of its owner."""
        raise Conflict(f"run {run.id} belongs to a {self.kind}, which does not retry single runs")


class Owners:
    """The kinds of work that this store knows, in the order in which they registered."""

    def __init__(self) -> None:
        self._by_kind: dict[str, Owner] = {}
        self._readers: dict[str, tuple[Owner, Reaction]] = {}

    def register(self, owner: Owner) -> None:
        self._by_kind[owner.kind] = owner
        for topic, reaction in owner.reactions().items():
            self._readers[topic] = (owner, reaction)

    def __iter__(self) -> Iterator[Owner]:
        return iter(self._by_kind.values())

    @property
    def topics(self) -> Iterable[str]:
        """Every outbox topic that somebody reads."""
        return self._readers

    def reader(self, topic: str) -> tuple[Owner, Reaction]:
        return self._readers[topic]

    def of(self, kind: str) -> Owner | None:
        return self._by_kind.get(kind)

    def run_kind(self, kind: str | None) -> RunKind | None:
        owner = None if kind is None else self._by_kind.get(kind)
        return None if owner is None else owner.run_kind

    def end_topic(self, kind: str) -> str:
        owner = self._by_kind.get(kind)
        return kind if owner is None else owner.end_topic

    def before_retry(self, connection: Connection, judged: Sequence[Judged]) -> Sequence[Judged]:
        """Every verdict, after the owners of runs that would be retried have had their say."""
        again: dict[str, list[int]] = {}
        for place, (settlement, row) in enumerate(judged):
            if row.kind in self._by_kind and settlement.verdict.status in _AGAIN:
                again.setdefault(row.kind, []).append(place)
        if not again:
            return judged
        result = list(judged)
        for kind, places in again.items():
            said = self._by_kind[kind].before_retry(connection, [judged[place] for place in places])
            for place, one in zip(places, said, strict=True):
                result[place] = one
        return result


_AGAIN = (RunStatus.PENDING, RunStatus.DELAYED)
