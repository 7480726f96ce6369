"""`fusee config`: what is set, from where, and what could be."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusee.surfaces.cli.answer import Answer
from fusee.surfaces.cli.commands import command
from fusee.surfaces.cli.exits import Exit, Failure
from fusee.surfaces.cli.options import Group, Shared, option
from fusee.surfaces.cli.output import table

if TYPE_CHECKING:
    from rich.table import Table

    from fusee.config import Config
    from fusee.config.keys import Key, KeyPath

__all__ = ["config"]


@click.group(cls=Group)
def config() -> None:
    """Show the configuration, begin one, or read about it.

    Example:
      fusee config init
      fusee config show
    """


@command()
@option("--changed", "Only settings that differ from the defaults.")
def show(shared: Shared, /, changed: bool) -> Answer:
    """Show every setting as it holds, and where it comes from; secrets are hidden.

    Later wins: defaults, file, environment, command line.

    Example:
      fusee config show --changed
      FUSEE_WORKER__QUEUES=mail fusee config show --json
    """
    from fusee.config.keys import dotted, keys

    whole, origins = shared.load(), _origins(shared)
    rows: list[tuple[str, Any, str]] = []
    for path, key in keys().items():
        origin = origins.get(path, "default")
        if not changed or origin != "default":
            rows.append((dotted(path), _shown(whole, key), origin))
    data = {name: {"value": value, "origin": origin} for name, value, origin in rows}
    return Answer(data, lambda: _table(rows))


def _table(rows: Sequence[tuple[str, Any, str]]) -> Table:
    from rich.text import Text

    drawn = table("setting", "value", "from")
    for name, value, origin in rows:
        text = "" if value is None else json.dumps(value, ensure_ascii=False)
        drawn.add_row(Text(name), Text(text), Text(origin, "dim" if origin == "default" else "green"))
    return drawn


def _shown(whole: Config, key: Key) -> Any:
    section: Any = whole
    for name in key.path[:-1]:
        section = getattr(section, name)
    value = getattr(section, key.path[-1])
    if key.is_secret and value:
        return section.shown(key.path[-1], value)
    return dict(value) if key.is_table else list(value) if key.is_list else value


def _origins(shared: Shared) -> dict[KeyPath, str]:
    """Where each setting that is no default was written."""
    from fusee.config.environment import read_environment
    from fusee.config.files import find_file, read_file
    from fusee.config.keys import keys
    from fusee.config.load import settings
    from fusee.config.problems import Problems

    problems = Problems()
    sources = []
    if file := find_file(shared.config, os.environ):
        sources.append(read_file(*file, problems))
    sources.append(read_environment(os.environ, problems))
    found: dict[KeyPath, str] = {}
    for source in sources:
        for path, setting in settings(source, problems).items():
            key = next(known for known in keys() if path[: len(known)] == known)
            place = setting.place()
            found[key] = place.source if place.line is None else f"{place.source}:{place.line}"
    for section, value in shared.overrides().items():
        for name, given in value.items() if isinstance(value, dict) else [("", value)]:
            if given is not None:
                found[(section, name) if name else (section,)] = "command line"
    return found


@command()
@click.argument("path", default="fusee.toml", type=click.Path(path_type=Path, allow_dash=True))
@option("--force", "Replace a file that exists.")
def init(path: Path, force: bool) -> Answer | None:
    """Write a configuration file that sets nothing and explains everything.

    It contains every setting as a comment, with its meaning and default. An existing file is not overwritten;
    - prints it instead.

    Example:
      fusee config init
      fusee config init /etc/fusee/fusee.toml
    """
    from fusee.config import example_toml

    if str(path) == "-":
        click.echo(example_toml(), nl=False)
        return None
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(example_toml())
    except FileExistsError:
        raise Failure(f"{path} exists already; --force replaces it", Exit.REFUSED) from None
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror}") from None
    return Answer({"path": str(path)}, f"wrote {path}: uncomment what you want to change, then `fusee check`")


@command()
def reference() -> Answer:
    """Print the reference of all settings, as Markdown.

    With --json, one object a setting: its default, its environment variable and its meaning.

    Example: fusee config reference | less
    """
    from fusee.config import reference as markdown
    from fusee.config.keys import dotted, keys, variable

    data = {
        dotted(path): {
            "default": _plain(key),
            "variable": variable(path),
            "meaning": key.field.description,
        }
        for path, key in keys().items()
    }
    return Answer(data, lambda: click.echo(markdown(), nl=False))


def _plain(key: Key) -> Any:
    return dict(key.default) if key.is_table else list(key.default) if key.is_list else key.default


for command_ in (show, init, reference):
    config.add_command(command_)
