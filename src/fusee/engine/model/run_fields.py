"""The fields that a run, a task and a node of a workflow share, declared once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fusee.engine.model.queue import Strategy
from fusee.engine.model.retry import RETRY, RetryPolicy
from fusee.errors import Invalid
from fusee.values.kinds import Kind, Name, Object, Seconds, Whole, is_number
from fusee.values.labels import requires_from, requires_text
from fusee.values.names import LONGEST_TIMEOUT, check_key
from fusee.values.sizes import bytes_from
from fusee.values.times import parse_time

__all__ = [
    "DUE",
    "EXECUTORS",
    "HIGHEST_PRIORITY",
    "REQUIRES",
    "Cpu",
    "Executor",
    "HashKey",
    "IdempotencyKey",
    "JsonObject",
    "Memory",
    "Payload",
    "Priority",
    "Queue",
    "Region",
    "Requires",
    "Retry",
    "Timeout",
    "UsedStrategy",
]

EXECUTORS = ("python", "shell", "http", "kubernetes", "dask")


LOWEST_PRIORITY, HIGHEST_PRIORITY = -1000, 1000


class _Executor(Kind):
    def read(self, value: Any, what: str) -> Any:
        name = value.lower() if isinstance(value, str) else value
        if name not in EXECUTORS:
            raise Invalid(f"{what} must be one of {', '.join(EXECUTORS)}, not {value!r:.60}", field=what)
        return name

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "examples": [*EXECUTORS]}


@dataclass(frozen=True, slots=True)
class JsonObject(Kind):
    """An object, or the JSON text of one."""

    hint: str = ""
    texts: bool = False
    """Whether its members are texts."""

    def read(self, value: Any, what: str) -> Any:
        given = value
        if isinstance(value, str):
            try:
                given = json.loads(value)
            except (ValueError, RecursionError):
                raise Invalid(f"{what} must be an object, or the JSON text of one", field=what) from None
        if not isinstance(given, Mapping):
            raise Invalid(f"{what} must be an object{self.hint or f', not {value!r:.60}'}", field=what)
        return given

    def schema(self) -> dict[str, Any]:
        one: dict[str, Any] = {"type": "object"}
        if self.texts:
            one["additionalProperties"] = {"type": "string"}
        return {"anyOf": [one, {"type": "string"}]}


class _Strategy(Kind):
    word = "NAME"

    shown = str | None

    def read(self, value: Any, what: str) -> Any:
        if value == "":
            return ""
        try:
            return str(Strategy(value))
        except ValueError:
            known = ", ".join(Strategy)
            raise Invalid(f"{what} must be one of {known}, not {value!r:.60}", field=what) from None

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "examples": [*Strategy]}

    def show(self, value: Any) -> Any:
        return value or None


class _Cpu(Kind):
    word = "N"

    def read(self, value: Any, what: str) -> Any:
        if not is_number(value) or not 0 < value <= 100_000:
            raise Invalid(
                f"{what} must be a number of cores above 0, at most 100000, not {value!r:.60}", field=what
            )
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "number", "exclusiveMinimum": 0, "maximum": 100_000}


class _Memory(Kind):
    word = "SIZE"

    def read(self, value: Any, what: str) -> Any:
        size = bytes_from(value, what)
        if isinstance(value, bool) or not 0 < size < 2**62:
            raise Invalid(f"{what} must be a whole number of bytes above 0, not {value!r:.60}", field=what)
        return size

    def schema(self) -> dict[str, Any]:
        kinds = [{"type": "integer", "minimum": 1}, {"type": "string"}]
        return {"anyOf": kinds, "examples": [1048576, "512MB", "8GiB"]}


class _Key(Kind):
    def read(self, value: Any, what: str) -> Any:
        return check_key(value, what)

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1, "maxLength": 200}


class _Requires(Kind):
    """Labels by name; a spec of a run holds them as text, see `requires_text`."""

    shown = dict[str, str]
    labels = JsonObject(texts=True)

    def read(self, value: Any, what: str) -> Any:
        if isinstance(value, str) and not value.startswith("{"):
            return value  # the text of labels that were read before
        labels = self.labels.read(value, what)
        requires_text(labels)
        return labels

    def schema(self) -> dict[str, Any]:
        return self.labels.schema()

    def show(self, value: Any) -> Any:
        return requires_from(value) if isinstance(value, str) else dict(value)


class _Due(Kind):
    """A moment: microseconds since the epoch in a model, RFC 3339 with an offset where a caller writes."""

    shown = str

    def written(self, value: Any, what: str) -> Any:
        try:
            return parse_time(value)
        except ValueError as error:
            raise Invalid(f"{what} {error}", field=what) from None

    def read(self, value: Any, what: str) -> Any:
        if type(value) is not int or not 0 <= value < 2**62:
            raise Invalid(f"{what} must be microseconds since 1970, not {value!r:.60}", field=what)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "format": "date-time", "examples": ["2030-01-31T09:00:00Z"]}


DUE, REQUIRES = _Due(), _Requires()

Payload = Annotated[
    Mapping[str, Any],
    Object(": its members are the handler's arguments"),
    "The handler's arguments by name, or what the executor takes; at most 1 MiB.",
]
Executor = Annotated[str, _Executor(), f"One of {', '.join(EXECUTORS)}."]
Queue = Annotated[str, Name(), "The queue in which its runs wait."]
Region = Annotated[str, Name(empty=True), "Only workers in this region take its runs."]
Priority = Annotated[
    int, Whole(LOWEST_PRIORITY, HIGHEST_PRIORITY), "-1000 to 1000; a higher priority is claimed first."
]
Timeout = Annotated[
    float | None,
    Seconds(0, LONGEST_TIMEOUT, above=True),
    "The maximum duration of one attempt; without one, the handler's.",
]
Retry = Annotated[
    RetryPolicy | None, RETRY, "When an attempt did not succeed; without one, the handler's policy."
]
UsedStrategy = Annotated[
    str,
    _Strategy(),
    f"How its runs are assigned to workers: {', '.join(Strategy)}; without one, as their queue says.",
]
Cpu = Annotated[float | None, _Cpu(), "Cores that its worker must have free."]
Memory = Annotated[int | None, _Memory(), "Memory that its worker must have free: bytes, `512MB`, `8GiB`."]
IdempotencyKey = Annotated[
    str | None, _Key(), "The same key again returns the same run; it wins over the header."
]
HashKey = Annotated[str | None, _Key(), "The key that `consistent_hash` uses."]
Requires = Annotated[
    Mapping[str, str], REQUIRES, 'Labels that its worker must have, such as {"gpu": "true"}.'
]
