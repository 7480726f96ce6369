"""Options of the command line, made from the declared fields of a noun."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fusee.values.durations import duration_text
from fusee.values.kinds import FLAG, SIZE, Name, Number, Seconds, Share, Whole, Words

if TYPE_CHECKING:
    from fusee.values.fields import Field, Form

__all__ = ["options_of"]

F = TypeVar("F", bound=Callable[..., Any])


def options_of(
    form: Form[Any], *names: str, metavar: str | None = None, defaults: bool = True, **flags: str
) -> Callable[[F], F]:
    """An option for each of these fields, in this order; one that is not given is None.

    `flags` are shorter names: `item_attempts="attempts"` makes `--attempts`. Without `defaults` the help
    names no default: the command changes something that has a value.
    """

    def decorate(command: F) -> F:
        for name in reversed((*names, *flags)):
            field = form.fields[name]
            text = field.help + (_default(field, metavar) if defaults else "")
            command = _option_of(field, flags.get(name, name), metavar, text)(command)
        return command

    return decorate


def _default(field: Field, metavar: str | None) -> str:
    if field.default in (MISSING, None, "", False):
        return ""
    lasts = isinstance(field.kind, Seconds) or metavar == "TIME"
    value = duration_text(field.default) if lasts else field.default
    return f"  [default: {value}]"


def _option_of(field: Field, flag: str, metavar: str | None, text: str) -> Callable[[F], F]:
    flag = flag.replace("_", "-")
    if field.kind is FLAG:
        return click.option(f"--{flag}/--no-{flag}", field.name, default=None, help=text)
    kind, usual = _typed(field)
    return click.option(f"--{flag}", field.name, type=kind, metavar=metavar or usual, help=text)


def _typed(field: Field) -> tuple[Any, str | None]:
    match field.kind:
        case Whole(least=least, most=most):
            return click.IntRange(least, most), "N"
        case Number(least=least, most=most):
            return click.FloatRange(least, most), "X"
        case Words(words=words):
            return click.Choice([str(word) for word in words], case_sensitive=False), None
        case Share():
            return None, "N|N%"
        case Seconds():
            return None, "TIME"
        case Name():
            return None, "NAME"
    return None, "SIZE" if field.kind is SIZE else "TEXT"
