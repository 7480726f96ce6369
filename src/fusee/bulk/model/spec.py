"""What a caller requests of a bulk job, and the kinds of its fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import floor
from typing import Annotated, Any, Literal

from fusee.bulk.model.pacing import HOLD, UNLIMITED, rate_from, rate_shown
from fusee.bulk.model.window import LARGEST_WINDOW
from fusee.errors import Invalid
from fusee.values.durations import seconds_from
from fusee.values.fields import Alias, Mark, conform
from fusee.values.kinds import FLAG, Kind, Name, Seconds, Share, Text, Texts, Whole

__all__ = ["RATE", "BulkAlerts", "BulkSpec"]

MOST_ITEMS = 2**62
LONGEST_SPAN = 60.0
"""The most seconds of waiting for a retry for which a window of automatic size has room."""
ITEM_TIMEOUT = 300.0
LONGEST_ITEM_TIMEOUT = 7 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkAlerts:
    """Where alerts are posted, and for what. They are delivered as http runs, so they are retried and
    recorded."""

    webhook: str
    on_failure: bool = True
    """The job failed."""
    on_stalled: bool = True
    """The job stalled: items are in progress, and none ends."""


class _Alerts(Kind):
    """An address, or an object with it; `none`."""

    def read(self, value: Any, what: str) -> Any:
        if isinstance(value, BulkAlerts) or value == "none":
            return None if value == "none" else value
        fields = {"webhook": value} if isinstance(value, str) else value
        if not isinstance(fields, Mapping):
            raise Invalid(
                f'{what} must be an address, or an object such as {{"webhook": "https://…"}}', field=what
            )
        if unknown := [name for name in fields if name not in BulkAlerts.__slots__]:
            known = ", ".join(BulkAlerts.__slots__)
            raise Invalid(f"{what} has no {unknown[0]!r:.60}; it has {known}", field=what)
        webhook = fields.get("webhook")
        if not isinstance(webhook, str) or not webhook.startswith(("http://", "https://")):
            raise Invalid(f"{what}.webhook must be the http or https address to post to", field=what)
        for name in ("on_failure", "on_stalled"):
            if not isinstance(fields.get(name, True), bool):
                raise Invalid(f"{what}.{name} must be true or false", field=what)
        return BulkAlerts(**fields)

    def schema(self) -> dict[str, Any]:
        flag = {"type": "boolean", "default": True}
        members = {"webhook": {"type": "string"}, "on_failure": flag, "on_stalled": flag}
        return {"anyOf": [{"type": "string"}, {"type": "object", "properties": members}]}


class _Source(Kind):
    """Where items come from: a number is a range from 0, a list is the items themselves, else an object."""

    shown = dict[str, Any]

    def read(self, value: Any, what: str) -> Any:
        match value:
            case bool():
                pass
            case int():
                return {"kind": "range", "stop": value}
            case range(step=1):
                return {"kind": "range", "start": value.start, "stop": max(value.start, value.stop)}
            case range():
                raise Invalid(f"{what} must be a range with step 1", field=what)
            case list() | tuple():
                return {"kind": "list", "items": list(value)}
            case Mapping() if isinstance(value.get("kind"), str):
                return value
        raise Invalid(
            f'{what} must be a number, a list, or an object such as {{"kind": "range", "stop": 1000}}',
            field=what,
        )

    def schema(self) -> dict[str, Any]:
        example = {"kind": "url", "url": "https://crm.example/users.csv"}
        kinds = [{"type": "integer"}, {"type": "array"}, {"type": "object", "required": ["kind"]}]
        return {"anyOf": kinds, "examples": [1000, ["ada", "bob"], example]}

    def show(self, value: Any) -> Any:
        """Shows how many items an inline list has, and hides the URL of a database, which may have a
        password."""
        brief: dict[str, Any] = {}
        for name, part in value.items():
            if name == "items" and isinstance(part, list | tuple):
                brief["count"] = len(part)
            elif name == "url" and value.get("kind") == "sql" and not str(part).startswith("env:"):
                brief[name] = "***"
            else:
                brief[name] = self.show(part) if isinstance(part, Mapping) else part
        return brief


class _Rate(Kind):
    """Items per second, `unlimited` or `hold`; the model has `UNLIMITED` or `HOLD` for these words."""

    shown = float | Literal["unlimited", "hold"]

    def written(self, value: Any, what: str) -> Any:
        return rate_from(value)

    def read(self, value: Any, what: str) -> Any:
        return value if value in (UNLIMITED, HOLD) and not isinstance(value, bool) else rate_from(value)

    def schema(self) -> dict[str, Any]:
        words = {"type": "string", "enum": ["unlimited", "hold"]}
        return {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, words], "examples": [500, "hold"]}

    def show(self, value: Any) -> Any:
        return rate_shown(value)


class _ItemTimeout(Kind):
    """Seconds, or `none`."""

    def read(self, value: Any, what: str) -> Any:
        if value == "none":
            return None
        seconds = seconds_from(value, what)
        if not 0.1 <= seconds <= LONGEST_ITEM_TIMEOUT:
            raise Invalid(f"{what} must be from 0.1 s to 7 days, or: none", field=what)
        return seconds

    def schema(self) -> dict[str, Any]:
        number = {"type": "number", "minimum": 0.1, "maximum": LONGEST_ITEM_TIMEOUT}
        return {"anyOf": [number, {"type": "string"}], "examples": [300, "5m", "none"]}


SOURCE, RATE = _Source(), _Rate()
Window = Annotated[
    int,
    Whole(0, LARGEST_WINDOW),
    "Items between the lowest one not done and the highest one started, in each segment; 0: chosen for you.",
]
ItemTimeout = Annotated[
    float | None,
    _ItemTimeout(),
    "The longest that a call for an item or a chunk may take, from 0.1 s to 7 days; `none` for no limit.",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkSpec:
    """What a caller requests; checked when it is created."""

    name: Annotated[str, Text(200, 1), "What people call the job."]
    business: Annotated[str, Name(120), Alias("handler"), "The bulk handler that processes the items."]
    source: Annotated[
        Mapping[str, Any],
        SOURCE,
        Alias("items"),
        "Where items come from: a number is a range from 0, a list is the items themselves, else an object"
        " with a `kind`. Of an inline list, the number of its items is shown.",
    ]
    concurrency: Annotated[
        int, Whole(1, 100_000), "Items or chunks in progress at once, counted over all workers."
    ] = 32
    rate: Annotated[
        float,
        RATE,
        "Items started per second, over all workers; `unlimited` for no cap, `hold` to start nothing.",
    ] = UNLIMITED
    window: Window = 0
    segments: Annotated[
        int,
        Whole(0, 10_000),
        Mark.HIDDEN,
        "The number of parts in which it starts; 0: as many as workers serve it. Idle workers split them"
        " further.",
    ] = 0
    item_attempts: Annotated[int, Whole(1, 1000), "How often an item is tried before it is quarantined."] = 3
    item_backoff: Annotated[
        float, Seconds(0, 3600), "Delay before an item is retried; doubled each time."
    ] = 0.5
    item_timeout: ItemTimeout = ITEM_TIMEOUT
    error_budget: Annotated[
        float | None,
        Share("items", MOST_ITEMS),
        "More quarantined items than this (a number, or a share such as 0.02 or 2%) fail the job.",
    ] = None
    adaptive: Annotated[bool, FLAG, "Find the concurrency automatically, up to `concurrency`."] = False
    queue: Annotated[str, Name(), "The queue in which its runs wait."] = "default"
    region: Annotated[str, Name(empty=True), "Only workers in this region take it."] = ""
    priority: Annotated[int, Whole(-1000, 1000), "A higher priority is claimed first."] = 0
    creator: Annotated[str, Text(128), "Who asked for it."] = ""
    env: Annotated[str, Text(128), Alias("environment"), "Its environment, for people."] = ""
    labels: Annotated[Mapping[str, str], Texts(None), "Short texts, for people and programs."] = field(
        default_factory=dict
    )
    alerts: Annotated[
        BulkAlerts | None,
        _Alerts(),
        "An address that is posted to when the job fails or stalls; or an object with `webhook`, `on_failure`"
        " and `on_stalled`; or `none`.",
    ] = None

    def __post_init__(self) -> None:
        conform(self)

    def errors_allowed(self, total: int) -> int | None:
        """Returns how many quarantined items do not fail the job; None when there is no limit."""
        if self.error_budget is None:
            return None
        if 0 < self.error_budget < 1:
            return floor(self.error_budget * total + 1e-6)
        return int(self.error_budget)

    @property
    def retry_span(self) -> float:
        """Seconds that an item waits in all when each of its attempts but the last one fails."""
        doublings = min(self.item_attempts - 1, 20)
        return min(self.item_backoff * (2.0**doublings - 1), LONGEST_SPAN)
