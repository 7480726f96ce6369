"""The options that every command takes, before or after its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from fusee.config import Config

__all__ = ["Command", "Group", "Shared", "duration", "shared_options"]


@dataclass
class Shared:
    """What was said on the command line for every command."""

    config: Path | None = None
    database: str | None = None
    namespace: str | None = None
    json: bool = False
    verbose: int = 0
    quiet: bool = False

    @classmethod
    def of(cls, context: click.Context) -> Shared:
        found = context.find_root().ensure_object(cls)
        assert isinstance(found, cls)
        return found

    def overrides(self) -> dict[str, Any]:
        """The flags as settings; `None` counts as not given."""
        level = "debug" if self.verbose else "warning" if self.quiet else None
        return {
            "namespace": self.namespace,
            "database": {"url": self.database},
            "logging": {"level": level},
        }

    def load(self, more: Mapping[str, Any] | None = None) -> Config:
        """Defaults, file, environment, flags."""
        from fusee.config import load

        return load(self.config, overrides=merged(self.overrides(), more or {}))


def merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """`more` over `base`, section by section; what is None in `more` leaves the base as it is."""
    answer = dict(base)
    for name, value in more.items():
        if isinstance(value, Mapping) and isinstance(answer.get(name), Mapping):
            answer[name] = merged(answer[name], value)
        elif value is not None:
            answer[name] = value
    return answer


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value and parameter.name:
        setattr(Shared.of(context), parameter.name, value)


def shared_options(*, hidden: bool) -> list[click.Option]:
    """On a command all but --json are hidden: its help is for what is its own."""

    def option(*names: str, **settings: Any) -> click.Option:
        return click.Option(names, expose_value=False, callback=_remember, **settings)

    return [
        option("--json", is_flag=True, help="Print JSON, for programs to read; errors too."),
        option(
            "--config",
            metavar="FILE",
            type=click.Path(path_type=Path),
            hidden=hidden,
            help="Configuration file. [default: $FUSEE_CONFIG, fusee.toml, fusee.yaml]",
        ),
        option(
            "--database",
            metavar="URL",
            hidden=hidden,
            help="Database, such as sqlite:///fusee.db or postgresql://user:password@host/name.",
        ),
        option("--namespace", metavar="NAME", hidden=hidden, help="The tenant to work for."),
        option("-v", "--verbose", count=True, hidden=hidden, help="Tell more; tracebacks too."),
        option("-q", "--quiet", is_flag=True, hidden=hidden, help="Tell less."),
    ]


class Command(click.Command):
    """A command that takes the shared options too."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        taken = {name for parameter in self.params for name in parameter.opts}
        self.params += [o for o in shared_options(hidden=True) if not taken & set(o.opts)]


class Group(click.Group):
    command_class = Command
    group_class = type

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params += shared_options(hidden=True)


def duration(*, least: float = 0.0) -> Callable[[click.Context, click.Parameter, str | None], float | None]:
    """An option's callback: seconds from `5m`, `1h30m`, `250ms`, `90`."""

    def parse(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
        if value is None:
            return None
        from fusee.config import parse_duration

        try:
            seconds = parse_duration(value)
        except ValueError as error:
            raise click.BadParameter(str(error), context, parameter) from None
        if seconds < least:
            raise click.BadParameter(f"must be at least {least:g} s", context, parameter)
        return seconds

    return parse
