"""Options of the command line, made from the declared fields of a noun."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fusee.values.durations import duration_text
from fusee.values.kinds import FLAG, Kind, Number, Seconds, Whole, Words

if TYPE_CHECKING:
    from fusee.values.fields import Field, Form

__all__ = ["options_of"]

F = TypeVar("F", bound=Callable[..., Any])


def options_of(
    form: Form[Any],
    *names: str,
    metavar: str | None = None,
    defaults: bool = True,
    callback: Callable[..., Any] | None = None,
    **flags: str,
) -> Callable[[F], F]:
    """An option for each of these fields, in this order; one that is not given is None.

    `flags` are shorter names: `item_attempts="attempts"` makes `--attempts`; several are separated by blanks.
    Without `defaults` the help names no default: the command changes something that has a value. The service
    checks the values, unless a `callback` does it while the command line is read.
    """

    def decorate(command: F) -> F:
        for name in reversed((*names, *flags)):
            field = form.fields[name]
            text = field.help + (_default(field, metavar) if defaults else "")
            command = _option_of(field, flags.get(name, name), metavar, text, callback)(command)
        return command

    return decorate


def _default(field: Field, metavar: str | None) -> str:
    if field.default in (MISSING, None, "", False):
        return ""
    lasts = isinstance(field.kind, Seconds) or metavar == "TIME"
    value = duration_text(field.default) if lasts else field.default
    return f"  [default: {value}]"


def _option_of(
    field: Field, flags: str, metavar: str | None, text: str, callback: Callable[..., Any] | None
) -> Callable[[F], F]:
    names = [f"--{flag.replace('_', '-')}" for flag in flags.split()]
    if field.kind is FLAG:
        return click.option(f"{names[0]}/--no-{names[0][2:]}", field.name, default=None, help=text)
    kind = _type_of(field.kind)
    shown = metavar or (None if isinstance(kind, click.Choice) else field.kind.word)
    return click.option(*names, field.name, type=kind, metavar=shown, help=text, callback=callback)


def _type_of(kind: Kind) -> click.ParamType[Any] | None:
    match kind:
        case Whole(least=least, most=most):
            return click.IntRange(least, most)
        case Number(least=least, most=most):
            return click.FloatRange(least, most)
        case Words(words=words):
            return click.Choice([str(word) for word in words], case_sensitive=False)
    return click.FLOAT if kind.schema().get("type") == "number" else None
