"""What a caller asks of a batch and of each target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import floor
from typing import Annotated, Any

from fusee.engine.model.retry import RETRY, RetryPolicy
from fusee.errors import Invalid
from fusee.values.fields import Alias, conform
from fusee.values.kinds import OBJECT, Kind, Name, Number, Seconds, Share, Text, Whole, Words
from fusee.values.names import LONGEST_TIMEOUT, check_name
from fusee.values.words import Word

__all__ = ["BatchSpec", "OnConflict", "OnError", "TargetSpec", "check_operation", "handler_of", "looker_of"]


class OnError(Word):
    STOP = "stop"
    """Start no further targets."""
    ROLLBACK = "rollback"
    """And undo those that were applied, or may have been."""


class OnConflict(Word):
    """What a batch does about a target that another batch under way is changing, or has still to change."""

    WAIT = "wait"
    """It passes the target over, and comes back to it when the other batch is done with it."""
    REFUSE = "refuse"
    """It does not start."""


Short = Annotated[str, Text(128)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpec:
    """What a caller asks for; checked when it is made."""

    batch_name: Annotated[str, Text(200, 1), Alias("name"), "What people call the batch."]
    batch_type: Annotated[str, Name(), Alias("operation"), "The operation."]
    target_type: Annotated[str, Name(), "The type of its targets."]
    creator: Annotated[Short, "Who asked for it."] = ""
    env: Annotated[Short, Alias("environment"), "The environment of its targets, for people."] = ""
    region: Annotated[str, Name(empty=True), "Only workers and dispatchers in this region take it."] = ""
    az: Annotated[Short, Alias("zone"), "The availability zone of its targets, for people."] = ""
    cmdb_service: Annotated[Short, "The service that its targets belong to, for people."] = ""
    extra_info: Annotated[Mapping[str, Any], OBJECT, "Anything else; it is kept as it is."] = field(
        default_factory=dict
    )
    concurrency: Annotated[
        int, Whole(0, 100_000), "Maximum number of targets at once, counted over all workers; 0 means no cap."
    ] = 32
    canary: Annotated[
        int,
        Whole(0, 10_000_000),
        "This many targets go first; the others wait until all of these have ended.",
    ] = 0
    ramp: Annotated[
        float,
        Number(1, 100),
        "After the canary, the factor by which the concurrency grows each time a round has ended well;"
        " 1 goes to the cap at once.",
    ] = 2.0
    max_errors: Annotated[
        float | None,
        Share("targets", 10**9),
        "More failures than this (a number, or a share such as 0.02 or 2%) stop the batch: nothing new"
        " starts, and running targets end.",
    ] = None
    on_error: Annotated[
        OnError,
        Words(OnError),
        "What too many errors do: `stop`, or `rollback`, which also undoes everything that was applied, or"
        " may have been applied.",
    ] = OnError.STOP
    on_conflict: Annotated[
        OnConflict,
        Words(OnConflict),
        "What to do about a target that another batch is changing, or has still to change: `wait` for it, or"
        " `refuse` to start.",
    ] = OnConflict.WAIT
    queue: Annotated[str, Name(), "The queue in which its runs wait."] = "default"
    priority: Annotated[int, Whole(-1000, 1000), "A higher priority is claimed first."] = 0
    timeout: Annotated[
        float | None,
        Seconds(0, LONGEST_TIMEOUT, above=True),
        "The maximum duration of one attempt at a target; without one, the operation's.",
    ] = None
    retry: Annotated[
        RetryPolicy | None, RETRY, "When an attempt at a target failed; without one, the operation's."
    ] = None

    def __post_init__(self) -> None:
        conform(self)
        check_operation(self.target_type, self.batch_type)

    def errors_allowed(self, total: int) -> int | None:
        """Failures that do not stop it."""
        if self.max_errors is None:
            return None
        if 0 < self.max_errors < 1:
            return floor(self.max_errors * total + 1e-6)  # 0.29 of 100 are 29, whatever a float says
        return int(self.max_errors)


class _TargetId(Kind):
    """A text, or a number that is kept as a text."""

    def read(self, value: Any, what: str) -> Any:
        value = str(value) if type(value) is int else value
        # MySQL takes a text with a space at its end for the same text without it.
        if (
            not isinstance(value, str)
            or not 1 <= len(value) <= 128
            or not value.isprintable()
            or value != value.strip()
        ):
            raise Invalid(
                f"{what} must be 1 to 128 printable characters without a space at either end", field=what
            )
        return value

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "minLength": 1, "maxLength": 128}, {"type": "integer"}]}


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSpec:
    """One target as it comes in."""

    target_id: Annotated[str, _TargetId(), Alias("id"), "What the operation knows it by."]
    target_name: Annotated[Short, Alias("name"), "What people call it."] = ""
    target_env: Annotated[Short, Alias("env"), "Its environment, for people."] = ""
    before: Annotated[Mapping[str, Any], OBJECT, Alias("before_update"), "What it is."] = field(
        default_factory=dict
    )
    after: Annotated[Mapping[str, Any], OBJECT, Alias("after_update"), "What it shall be."] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        conform(self)


def check_operation(target_type: str, batch_type: str) -> None:
    """Both names together name a handler: which is which must be clear, and it must not be too long."""
    check_name(target_type, "target_type")
    check_name(batch_type, "batch_type")
    if "." in target_type:
        raise Invalid(f"target_type must be without a dot, not {target_type!r:.60}", field="target_type")
    if len(target_type) + len(batch_type) > 120:
        raise Invalid(
            "target_type and batch_type must be at most 120 characters together", field="target_type"
        )


def handler_of(target_type: str, batch_type: str) -> str:
    """The name under which workers serve an operation."""
    return f"batch.{target_type}.{batch_type}"


def looker_of(target_type: str, batch_type: str) -> str:
    """The name under which they look at targets for it."""
    return f"look.{target_type}.{batch_type}"
