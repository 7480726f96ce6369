"""What a command returns: one answer that is printed as JSON or as text, and the nouns it is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click

from fusee.surfaces.cli.exits import Exit
from fusee.surfaces.cli.output import Out, clean, status_text, table

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

__all__ = ["Answer", "Noun"]

T = TypeVar("T")


class Answer:
    """`data` is what `--json` prints; `shown` and, on standard error, `say` are what a person reads.

    Functions among them are called only when their side is printed.
    """

    def __init__(self, data: Any, *shown: Any, say: Sequence[str] = (), exit: Exit = Exit.OK) -> None:
        self.data = data
        self.shown = shown
        self.say = say
        self.exit = exit

    def json(self) -> Any:
        return self.data() if callable(self.data) else self.data

    def show(self, out: Out) -> None:
        for part in self.shown:
            shown = part() if callable(part) else part
            if shown is not None:  # a function may also write by itself
                out.show(*shown) if isinstance(shown, list | tuple) else out.show(shown)
        for remark in self.say:
            out.say(remark)

    def print(self, out: Out) -> None:
        """Print it, and end the command with its exit code."""
        out.data(self.json()) if out.json else self.show(out)
        if self.exit:
            raise click.exceptions.Exit(int(self.exit))


@dataclass(frozen=True)
class Noun(Generic[T]):
    """How one kind of thing is shown, declared once."""

    shape: Callable[[T], Mapping[str, Any]]
    """The object that `--json` prints; the same as in the REST API."""
    columns: Mapping[str, Callable[[T], Any]] = field(default_factory=dict)
    """Heading → cell of a list's table; `>` in front aligns to the right. The first identifies a row."""
    line: Callable[[T], str] | None = None
    """One line, for a thing that was changed; without it, the cells of its row."""
    whole: Callable[[T], Sequence[Any]] = lambda thing: ()
    """Everything there is to see, for `show`."""
    none: str = "nothing found"
    """What is said when a list is empty."""
    no_match: str = ""
    """The same when the list was filtered."""
    cursor: tuple[str, Callable[[T], Any]] | None = None
    """The option that asks for the next page, and its value behind the last thing of this one."""

    def one(self, thing: T, *say: str, exit: Exit = Exit.OK, **more: Any) -> Answer:
        """A thing that was changed or waited for; `more` goes into the JSON object."""
        return Answer(lambda: {**self.shape(thing), **more}, lambda: self.in_line(thing), say=say, exit=exit)

    def all(self, thing: T, *say: str) -> Answer:
        """A thing with everything there is to see."""
        return Answer(lambda: self.shape(thing), lambda: self.whole(thing), say=say)

    def many(
        self, things: Sequence[T], *say: str, limit: int | None = None, filtered: bool = False
    ) -> Answer:
        """A list, or one page of it when it is as long as `limit`."""
        more: dict[str, Any] = {}
        if self.cursor is not None:
            name, value = self.cursor
            behind = value(things[-1]) if things and len(things) == limit else None
            more[f"next_{name}"] = behind
            say = (*say, f"more: --{name} {behind}") if behind is not None else say
        none = self.no_match or self.none if filtered else self.none
        return Answer(
            lambda: {"items": [self.shape(thing) for thing in things], **more},
            *([lambda: self.table(things)] if things else []),
            say=say if things else (none,),
        )

    def in_line(self, thing: T) -> str:
        if self.line is not None:
            return self.line(thing)
        return "\t".join(_cell(value(thing)).plain for value in self.columns.values())

    def table(self, things: Sequence[T]) -> Table:
        drawn = table(*self.columns)
        for thing in things:
            drawn.add_row(*(_cell(value(thing)) for value in self.columns.values()))
        return drawn


def _cell(value: Any) -> Text:
    from rich.text import Text

    if isinstance(value, Text):
        return value
    if isinstance(value, Enum):
        return status_text(str(value))
    return Text("" if value is None else clean(str(value)))
