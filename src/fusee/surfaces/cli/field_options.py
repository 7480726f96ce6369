"""Options of the command line, made from the declared fields of a noun."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fusee.values.kinds import FLAG, SIZE, Name, Number, Seconds, Share, Whole, Words

if TYPE_CHECKING:
    from fusee.values.fields import Field, Form

__all__ = ["option_of", "options_of"]

F = TypeVar("F", bound=Callable[..., Any])


def options_of(form: Form[Any], *names: str) -> Callable[[F], F]:
    """An option for each of these fields, in this order; one that is not given is None."""

    def decorate(command: F) -> F:
        for name in reversed(names):
            command = option_of(form.fields[name])(command)
        return command

    return decorate


def option_of(field: Field) -> Callable[[F], F]:
    flag = "--" + field.name.replace("_", "-")
    if field.kind is FLAG:
        return click.option(f"{flag}/--no-{flag[2:]}", field.name, default=None, help=field.help)
    kind, metavar = _typed(field)
    return click.option(flag, field.name, type=kind, metavar=metavar, help=field.help)


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
            return None, "DURATION"
        case Name():
            return None, "NAME"
    return None, "SIZE" if field.kind is SIZE else "TEXT"
