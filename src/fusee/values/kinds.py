"""The kinds of value that a field can hold: how a value is read, described in a schema, and shown.

Each kind reads what it has read before to the same value, so a spec checks itself by reading its own fields.
A value that does not fit raises `Invalid` with the name of its field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from enum import Enum
from math import inf
from typing import Any, ClassVar

from fusee.errors import Invalid
from fusee.values.durations import LONGEST, seconds_from
from fusee.values.names import NAME, check_name
from fusee.values.sizes import bytes_from
from fusee.values.times import show_time, show_times
from fusee.values.words import Word

__all__ = [
    "FLAG",
    "JSON",
    "NAMES",
    "OBJECT",
    "SIZE",
    "TEXT",
    "TIME",
    "TIMES",
    "Kind",
    "Name",
    "Number",
    "Object",
    "Seconds",
    "Share",
    "Text",
    "Texts",
    "Whole",
    "Words",
    "is_number",
    "or_null",
    "plain",
]


def plain(value: Any) -> Any:
    """A value of a model as JSON has it."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value.value) if isinstance(value, Enum) else value
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema, which null fits too."""
    if "anyOf" in schema:
        kinds = [kind for kind in schema["anyOf"] if kind != {"type": "null"}]
        return {**schema, "anyOf": [*kinds, {"type": "null"}]}
    if isinstance(schema.get("type"), str):
        return {**schema, "type": [schema["type"], "null"]}
    return schema


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Kind:
    """Any JSON value; the base of the other kinds."""

    shown: Any = None
    """The type of the value as it is shown, where that is not the type of the field."""

    word: ClassVar[str] = "TEXT"
    """What stands for a value in the help of a command."""

    def read(self, value: Any, what: str) -> Any:
        """The value of what a caller wrote; `what` is the name of the field."""
        return value

    def written(self, value: Any, what: str) -> Any:
        """The same, where a caller may write less than a model may hold."""
        return value

    def schema(self) -> dict[str, Any]:
        """What a caller may write, as a JSON schema."""
        return {}

    def show(self, value: Any) -> Any:
        return plain(value)

    def brief(self, value: Any) -> Any:
        """The same in a list."""
        return self.show(value)


@dataclass(frozen=True, slots=True)
class Text(Kind):
    """A text; of one line, unless `lines`."""

    most: int | None = None
    least: int = 0
    lines: bool = False
    examples: tuple[str, ...] = ()

    def read(self, value: Any, what: str) -> Any:
        good = isinstance(value, str) and len(value) >= self.least
        if good and self.most is not None:
            good = len(value) <= self.most and (self.lines or not value or value.isprintable())
        if good:
            return value
        if self.most is None:
            raise Invalid(f"{what} must be text, not {value!r:.60}", field=what)
        how = f"{self.least} to {self.most}" if self.least else f"at most {self.most}"
        raise Invalid(f"{what} must be {how}{'' if self.lines else ' printable'} characters", field=what)

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "string"}
        if self.least:
            schema["minLength"] = self.least
        if self.most is not None:
            schema["maxLength"] = self.most
        return schema | ({"examples": list(self.examples)} if self.examples else {})


@dataclass(frozen=True, slots=True)
class Name(Kind):
    """A name of ours (see `check_name`); possibly none at all."""

    word = "NAME"

    most: int = 128
    empty: bool = False

    def read(self, value: Any, what: str) -> Any:
        if self.empty and value == "":
            return value
        check_name(value, what)
        if len(value) > self.most:
            raise Invalid(f"{what} must be at most {self.most} characters", field=what)
        return value

    def schema(self) -> dict[str, Any]:
        pattern = f"^(?:{NAME})?$" if self.empty else f"^{NAME}$"
        return {"type": "string", "pattern": pattern, "maxLength": self.most}


@dataclass(frozen=True, slots=True)
class Whole(Kind):
    word = "N"

    least: int
    most: int

    def read(self, value: Any, what: str) -> Any:
        if type(value) is not int or not self.least <= value <= self.most:
            raise Invalid(
                f"{what} must be a whole number from {self.least} to {self.most}, not {value!r:.60}",
                field=what,
            )
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True, slots=True)
class Number(Kind):
    word = "X"

    least: float
    most: float

    def read(self, value: Any, what: str) -> Any:
        if not is_number(value) or not self.least <= value <= self.most:
            raise Invalid(
                f"{what} must be from {self.least:g} to {self.most:g}, not {value!r:.60}", field=what
            )
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "number", "minimum": self.least, "maximum": self.most}


class _Flag(Kind):
    def read(self, value: Any, what: str) -> Any:
        if not isinstance(value, bool):
            raise Invalid(f"{what} must be true or false, not {value!r:.60}", field=what)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Words(Kind):
    """One word of a set, in any case."""

    words: type[Word]

    def read(self, value: Any, what: str) -> Any:
        try:
            return self.words(value)
        except ValueError:
            known = ", ".join(self.words)
            raise Invalid(f"{what} must be one of {known}, not {value!r:.60}", field=what) from None

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "examples": [str(word) for word in self.words]}


@dataclass(frozen=True, slots=True)
class Seconds(Kind):
    """A duration: seconds, or a text such as `90s` or `1h30m`."""

    word = "TIME"

    least: float = 0.0
    most: float = LONGEST
    above: bool = False
    """Whether `least` itself is too little."""

    def read(self, value: Any, what: str) -> Any:
        seconds = float(value) if is_number(value) else seconds_from(value, what, least=-inf, most=inf)
        if not self.least <= seconds <= self.most or (self.above and seconds == self.least):
            least = f"more than {self.least:.15g} and at most" if self.above else f"from {self.least:.15g} to"
            raise Invalid(f"{what} must be {least} {self.most:.15g} seconds, not {seconds:.15g}", field=what)
        return seconds

    def schema(self) -> dict[str, Any]:
        bound = "exclusiveMinimum" if self.above else "minimum"
        kinds = [{"type": "number", bound: self.least, "maximum": self.most}, {"type": "string"}]
        return {"anyOf": kinds, "examples": [90, "90s", "1h30m"]}


class _Size(Kind):
    """Bytes: a number, or a text such as `512MB`."""

    word = "SIZE"

    def read(self, value: Any, what: str) -> Any:
        return bytes_from(value, what)

    def schema(self) -> dict[str, Any]:
        kinds = [{"type": "integer", "minimum": 1}, {"type": "string"}]
        return {"anyOf": kinds, "examples": [1048576, "512MB", "8GiB"]}


@dataclass(frozen=True, slots=True)
class Share(Kind):
    """A count, or a share of all: 5, 0.02, `2%`; `none` and `100%` are no limit: None."""

    word = "N|N%"

    of: str
    most: int

    def read(self, value: Any, what: str) -> Any:
        if isinstance(value, str):
            value = self._from_text(value, what) if value != "none" else None
        if value is None:
            return None
        if is_number(value) and 0 <= value <= self.most and (value < 1 or value == int(value)):
            return value
        raise Invalid(
            f"{what} must be a whole number, or a share of the {self.of} from 0 to below 1", field=what
        )

    def _from_text(self, text: str, what: str) -> float | None:
        number, percent, rest = text.strip().partition("%")
        try:
            value = float(number) / 100 if percent else float(number)
        except ValueError:
            value = -1
        if rest or not value >= 0 or (percent and value > 1):
            raise Invalid(f"{what} must be a number or a share such as 2%, not {text!r:.40}", field=what)
        return None if percent and value == 1 else value

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}], "examples": [5, 0.02, "2%"]}


@dataclass(frozen=True, slots=True)
class Object(Kind):
    """A JSON object; `hint` is told when it is none."""

    hint: str = ""

    def read(self, value: Any, what: str) -> Any:
        if not isinstance(value, Mapping):
            raise Invalid(f"{what} must be an object{self.hint or f', not {value!r:.60}'}", field=what)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "object"}


@dataclass(frozen=True, slots=True)
class Texts(Kind):
    """An object of short texts by name: labels."""

    most: int | None = 50
    """None: as many and as long as one likes."""

    def read(self, value: Any, what: str) -> Any:
        texts = isinstance(value, Mapping) and all(
            isinstance(name, str) and isinstance(text, str) for name, text in value.items()
        )
        if not texts:
            few = "" if self.most is None else f"at most {self.most} short "
            raise Invalid(f"{what} must be an object of {few}texts", field=what)
        if self.most is not None and (
            len(value) > self.most or any(len(name) > 128 or len(text) > 256 for name, text in value.items())
        ):
            raise Invalid(f"{what} must be at most {self.most} short texts by name", field=what)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": {"type": "string", "maxLength": 256}}


class _Names(Kind):
    """A list of names; one alone may stand without a list."""

    def read(self, value: Any, what: str) -> Any:
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
            raise Invalid(f"{what} must be a list of names", field=what)
        return tuple(value)

    def schema(self) -> dict[str, Any]:
        names = {"type": "array", "items": {"type": "string", "pattern": f"^{NAME}$"}, "uniqueItems": True}
        return {"anyOf": [names, {"type": "string"}]}


class _Time(Kind):
    """A moment in microseconds since the epoch; shown as RFC 3339."""

    shown = str

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "format": "date-time"}

    def show(self, value: Any) -> Any:
        return show_time(value)


class _Times(Kind):
    """Moments in microseconds since the epoch; shown as RFC 3339."""

    shown = list[str]

    def show(self, value: Any) -> Any:
        return show_times(value)


JSON = Kind()
TEXT = Text()
FLAG = _Flag()
SIZE = _Size()
OBJECT = Object()
NAMES = _Names()
TIME = _Time()
TIMES = _Times()
