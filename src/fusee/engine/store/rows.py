"""New runs on their way into the table, and what a claim reads from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Row

from fusee.engine.model.outcome import Effect
from fusee.engine.model.run import Claimed, RunSpec
from fusee.engine.model.states import RUN_BIRTH, TERMINAL, RunStatus
from fusee.engine.store.request_keys import asked, digest_of
from fusee.engine.store.tables import LONGEST_REASON, RARE
from fusee.errors import Invalid
from fusee.values.chunks import ROWS_A_STATEMENT
from fusee.values.names import MOST_PAYLOAD

__all__ = [
    "AnyRow",
    "Bulk",
    "NewRun",
    "claimed_from",
    "decode",
    "encode",
    "encode_rows",
    "new_run",
    "portions",
]

AnyRow = Row[*tuple[Any, ...]]
"""A row of some query, which names its columns."""
CHARACTERS_A_STATEMENT = 1024 * 1024
"""Stays below the defaults of max_allowed_packet."""

_encoder = msgspec.json.Encoder()
_decode = msgspec.json.Decoder().decode
# As plain text: a driver looks longer at a member of an enum.
_PENDING, _DELAYED = RUN_BIRTH["enqueue"].value, RUN_BIRTH["delay"].value


class NewRun(NamedTuple):
    """A run to insert, in any state that a run can begin in; the database adds its own time."""

    lane_id: int
    priority: int = 0
    delay_us: int = 0
    due_at: int | None = None
    payload: str | None = None
    options: str | None = None
    origin_id: int | None = None
    idempotency_key: str | None = None
    request_digest: str | None = None
    status: RunStatus = RunStatus.PENDING
    """Pending becomes delayed when the run is due later."""
    kind: str | None = None
    owner_id: int | None = None
    attempt: int = 0
    """Attempts counted before its first."""
    reason: str | None = None
    effect: str | None = None
    """The effect of the earlier run that this one replaces; it stays until this one has an effect."""

    @property
    def immediate(self) -> bool:
        return self.due_at is None and self.delay_us == 0

    def due(self, now: int) -> int:
        return self.due_at if self.due_at is not None else now + self.delay_us

    def row(self, namespace: str, now: int) -> dict[str, Any]:
        """The run's row, all of it."""
        due = self.due(now)
        status = self.status
        if status is RunStatus.PENDING and due > now:
            status = RunStatus.DELAYED
        over = status in TERMINAL
        return {
            "namespace": namespace,
            "lane_id": self.lane_id,
            "status": status,
            "rare": status if status in RARE else None,
            "priority": self.priority,
            "attempt": self.attempt,
            "created_at": now,
            "due_at": due,
            "finished_at": now if over else None,
            "effect": Effect.NONE if over else self.effect,
            "reason": self.reason[:LONGEST_REASON] if self.reason else None,
            "origin_id": self.origin_id,
            "idempotency_key": self.idempotency_key,
            "request_digest": self.request_digest,
            "payload": self.payload,
            "options": self.options,
            "kind": self.kind,
            "owner_id": self.owner_id,
        }

    def values(self, namespace: str, now: int) -> tuple[Any, ...]:
        """The row of a run that was submitted without a key, for the hot statements: namespace, lane, status,
        priority, created, due, origin, payload, options."""
        due = self.due(now)
        status = _DELAYED if due > now else _PENDING
        return (
            namespace,
            self.lane_id,
            status,
            self.priority,
            now,
            due,
            self.origin_id,
            self.payload,
            self.options,
        )

    def entry(self, run_id: int, now: int) -> WaitingRow:
        """The entry in which a run of the hot statements waits."""
        due = self.due(now)
        if due > now:
            return WaitingRow(None, (due, run_id, self.lane_id))
        return WaitingRow((self.lane_id, -self.priority, due, run_id), None)


def portions(new: Iterable[NewRun], most: int = ROWS_A_STATEMENT) -> Iterator[list[NewRun]]:
    """As many runs as one statement should insert, by number and by size."""
    part: list[NewRun] = []
    size = 0
    for run in new:
        own = len(run.payload or "") + len(run.options or "")
        if part and (len(part) >= most or size + own > CHARACTERS_A_STATEMENT):
            yield part
            part, size = [], 0
        part.append(run)
        size += own
    if part:
        yield part


class Bulk(NamedTuple):
    """Many runs that are due at once and have no keys, as columns: rows would busy the garbage collector."""

    lane_ids: list[int]
    priorities: list[int]
    payloads: list[str | None]
    options: list[str | None]
    origin_ids: list[int | None]

    @classmethod
    def of(cls, specs: Sequence[RunSpec], lane_ids: list[int]) -> Bulk:
        return cls(
            lane_ids,
            [spec.priority for spec in specs],
            encode_payloads([spec.payload for spec in specs]),
            [encode(o, "options") if (o := spec.options()) else None for spec in specs]
            if any(spec.timeout is not None or spec.retry is not None or spec.strategy for spec in specs)
            else [None] * len(specs),
            [spec.origin_id for spec in specs],
        )

    @classmethod
    def each(cls, template: RunSpec, lane_id: int, payloads: Sequence[Mapping[str, Any] | None]) -> Bulk:
        """One run like the template for each payload."""
        many, options = len(payloads), template.options()
        return cls(
            [lane_id] * many,
            [template.priority] * many,
            encode_payloads(payloads),
            [encode(options, "options") if options else None] * many,
            [template.origin_id] * many,
        )

    def rows(self) -> Iterator[NewRun]:
        for lane_id, priority, payload, options, origin_id in zip(*self, strict=True):
            yield NewRun(lane_id, priority, 0, None, payload, options, origin_id)


class WaitingRow(NamedTuple):
    """A row of `fusee_ready`, or of `fusee_delayed`."""

    ready: tuple[int, int, int, int] | None
    delayed: tuple[int, int, int] | None


def new_run(spec: RunSpec, lane_id: int) -> NewRun:
    options = spec.options()
    return NewRun(
        lane_id,
        spec.priority,
        round(spec.delay * 1_000_000),
        spec.due_at,
        encode(spec.payload, "payload") if spec.payload else None,
        encode(options, "options") if options else None,
        spec.origin_id,
        spec.idempotency_key,
        None if spec.idempotency_key is None else _digest(spec),
    )


def _digest(spec: RunSpec) -> str:
    if spec.origin_id is not None:  # all else is what that run was
        return digest_of("retry", spec.origin_id)
    content = asked(spec, without=("idempotency_key", "request"))
    return digest_of(spec.request, {name: value for name, value in content.items() if value != {}})


def encode(value: Any, what: str, *, nr: int | None = None) -> str:
    """As JSON text; `nr` tells which of many it is."""
    name = what if nr is None else f"{what} {nr}"
    try:
        text = _encoder.encode(value)
    except (TypeError, ValueError, UnicodeEncodeError, RecursionError) as error:
        raise Invalid(f"{name} cannot be written as JSON: {error}", field=what) from None
    if len(text) > MOST_PAYLOAD:
        raise Invalid(
            f"{name} is {len(text)} bytes; at most {MOST_PAYLOAD} are allowed. Store large data elsewhere"
            " and pass a reference to it",
            field=what,
        )
    return text.decode()


def encode_payloads(payloads: Sequence[Mapping[str, Any] | None]) -> list[str | None]:
    """Each as JSON text, nothing for an empty one; all in one call, which is faster."""
    try:
        texts: list[Any] = _encoder.encode_lines(payloads).decode().split("\n")
    except (TypeError, ValueError, RecursionError):
        return _one_by_one(payloads)  # says which is wrong
    texts.pop()  # what follows the last line's end
    # JSON that the caller wrote (msgspec.Raw) may hold line ends; what is long is weighed in bytes.
    if len(texts) != len(payloads) or max(map(len, texts), default=0) > MOST_PAYLOAD // 4:
        return _one_by_one(payloads)
    if all(payloads):
        return texts
    return [text if payload else None for payload, text in zip(payloads, texts, strict=True)]


def _one_by_one(payloads: Sequence[Mapping[str, Any] | None]) -> list[str | None]:
    many = len(payloads) > 1
    return [
        encode(payload, "payload", nr=nr if many else None) if payload else None
        for nr, payload in enumerate(payloads)
    ]


def encode_rows(rows: Any) -> str:
    """Rows on their way into one statement, as JSON; also what was weighed before, part by part."""
    return _encoder.encode(rows).decode()


def claimed_from(row: Any, receipt: int) -> Claimed:
    """A row of id, attempt, spent, lane, payload, options, kind, owner, as a claim returns it."""
    return Claimed(row[0], row[1], row[2], row[3], row[4], row[5], receipt, kind=row[6], owner_id=row[7])


def decode(text: str | None) -> Any:
    return None if text is None else _decode(text)
