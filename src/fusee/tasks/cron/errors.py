"""CronError: it names the expression, what is wrong, and the field as the user counts it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CronError", "FieldPosition", "shown"]

_MOST_SHOWN = 80


class CronError(ValueError):
    """Not a cron expression, or one that never fires."""

    field: str | None
    """"second", "minute", "hour", "day of month", "month" or "day of week"; None: the line as a whole."""
    position: int | None
    """Which field, counted from 1 as it was written: minutes are first of five and second of six."""

    def __init__(self, message: str, field: str | None = None, position: int | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.position = position


@dataclass(frozen=True, slots=True)
class FieldPosition:
    """The expression and the field that are being parsed, for the message of a refusal."""

    expression: str
    field: str
    position: int

    def refuse(self, what: str) -> CronError:
        message = f'cron "{shown(self.expression)}": {self.field} {what} (field {self.position})'
        return CronError(message, self.field, self.position)


def shown(text: str) -> str:
    """Short and printable: what a user typed goes into logs and answers."""
    clipped = text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "..."
    return clipped if clipped.isascii() and clipped.isprintable() else ascii(clipped)[1:-1]
