"""The kinds of the fields that only tasks have."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from fusee.engine.model.run_fields import JsonObject
from fusee.errors import Invalid
from fusee.tasks.cron import Cron, CronError
from fusee.tasks.model.schedule import zone_named
from fusee.values.durations import seconds_from
from fusee.values.kinds import TEXT, Kind, Seconds, Texts, Whole, or_null
from fusee.values.names import BUILT_IN
from fusee.values.times import show_time

__all__ = [
    "ALERTS",
    "AT",
    "CRON",
    "HANDLER",
    "JSON_OBJECT",
    "LABELS",
    "TRIGGER",
    "ZONE",
    "Alerts",
    "instant_from",
]

JSON_OBJECT, SHORT_TEXTS = JsonObject(), Texts(50)


class _Trigger(Kind):
    shown = Literal["cron", "interval", "once", "after", "manual"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alerts:
    """A webhook and the events that it receives. Each delivery is an http run of its own, so it is retried
    and recorded."""

    webhook: str
    on_failure: bool = True
    on_failures_in_a_row: int | None = None
    """Reported at the n-th failure in a row and at no other; `on_failure` is then off unless it is set."""
    on_lateness: float | None = None
    """Seconds; a fire that is decided later than this is reported."""


class _TaskAlerts(Kind):
    """A webhook, or an object with it."""

    def read(self, value: Any, what: str) -> Any:
        if isinstance(value, Alerts):
            return value
        is_address = isinstance(value, str) and not value.lstrip().startswith("{")
        given = {"webhook": value} if is_address else JSON_OBJECT.read(value, what)
        unknown = [key for key in given if key not in Alerts.__slots__]
        if unknown:
            known = ", ".join(Alerts.__slots__)
            raise Invalid(f"{what} has no {unknown[0]!r:.60}; it has {known}", field=what)
        webhook = given.get("webhook")
        if not isinstance(webhook, str) or not webhook.startswith(("http://", "https://")):
            raise Invalid(f"{what}.webhook must be the http or https address to post to", field=what)
        row = given.get("on_failures_in_a_row")
        if row is not None and (type(row) is not int or not 1 <= row <= 1000):
            raise Invalid(f"{what}.on_failures_in_a_row must be from 1 to 1000, not {row!r:.60}", field=what)
        late = given.get("on_lateness")
        on_failure = given.get("on_failure", row is None)
        if not isinstance(on_failure, bool):
            raise Invalid(f"{what}.on_failure must be true or false", field=what)
        try:
            seconds = None if late is None else seconds_from(late, f"{what}.on_lateness", least=0.1)
        except Invalid as error:
            raise Invalid(str(error), field=what) from None
        return Alerts(webhook=webhook, on_failure=on_failure, on_failures_in_a_row=row, on_lateness=seconds)

    def schema(self) -> dict[str, Any]:
        members = {
            "webhook": {"type": "string", "pattern": "^https?://"},
            "on_failure": {"type": "boolean"},
            "on_failures_in_a_row": {
                **or_null(Whole(1, 1000).schema()),
                "description": "Reported at the n-th failure in a row.",
            },
            "on_lateness": {
                **or_null(Seconds(0.1).schema()),
                "description": "A fire that is decided later than this is reported.",
            },
        }
        alerts = {
            "type": "object",
            "properties": members,
            "required": ["webhook"],
            "additionalProperties": False,
        }
        return {"anyOf": [alerts, {"type": "string"}]}


class _TaskHandler(Kind):
    """A handler; those that start a workflow or a batch are named by what they start."""

    shown = str | None

    def written(self, value: Any, what: str) -> Any:
        if value in BUILT_IN:
            raise Invalid(f"{what}: name what it starts as `{BUILT_IN[value]}`", field=what)
        return value

    def read(self, value: Any, what: str) -> Any:
        return TEXT.read(value, what)

    def schema(self) -> dict[str, Any]:
        return {**TEXT.schema(), "examples": ["greet"]}

    def show(self, value: Any) -> Any:
        return None if value in BUILT_IN else value or None


class _Labels(Kind):
    """Short texts by name, or the JSON text of such an object."""

    shown = dict[str, str]

    def read(self, value: Any, what: str) -> Any:
        return SHORT_TEXTS.read(JSON_OBJECT.read(value, what), what)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [SHORT_TEXTS.schema(), {"type": "string"}]}


class _Zone(Kind):
    word = "ZONE"

    def read(self, value: Any, what: str) -> Any:
        zone_named(TEXT.read(value, what))
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "examples": ["Europe/Berlin"]}


class _At(Kind):
    """A moment, in microseconds since the epoch; a caller writes RFC 3339."""

    shown = str

    def written(self, value: Any, what: str) -> Any:
        return TEXT.read(value, what)

    def read(self, value: Any, what: str) -> Any:
        return Whole(0, 2**62).read(value, what)

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "examples": ["2030-01-31T09:00:00Z"]}

    def show(self, value: Any) -> Any:
        return show_time(value)


class _Cron(Kind):
    word = "EXPRESSION"

    def read(self, value: Any, what: str) -> Any:
        try:
            return Cron.parse(TEXT.read(value, what)).text
        except CronError as error:
            raise Invalid(str(error), field=what) from error

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "examples": ["0 3 * * *", "@daily"]}


def instant_from(value: str, timezone: str) -> int:
    """A time as RFC 3339; without an offset it is meant in the task's time zone."""
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise Invalid(
            f"at must be a time such as 2027-01-31T03:00:00Z, not {value!r:.60}", field="at"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone_named(timezone))
    since = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    if not 0 <= since < _END:
        raise Invalid("at must not be before 1970 or after 9999", field="at")
    return since


_END = (datetime.max - datetime(1970, 1, 1)) // timedelta(microseconds=1)

ALERTS, HANDLER, LABELS, ZONE = _TaskAlerts(), _TaskHandler(), _Labels(), _Zone()
AT, CRON, TRIGGER = _At(), _Cron(), _Trigger()
