"""Write docs/cli.md from the help texts of the commands."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from fusee.app.cli.root import SECTIONS, cli
from fusee.surfaces.cli.exits import meanings

__all__ = ["commands", "page"]

HEAD = """\
# Command line

<!-- Made by `python tools/document_cli.py` from the help texts of the commands. -->

Commands talk straight to the database that the [configuration](configuration.md) names, so they work whether
or not a server is up. `fusee COMMAND --help` shows the same as this page.

A noun may be written in the plural (`fusee runs show 7` is `fusee run show 7`), and the plural alone lists:
`fusee runs`, `fusee tasks --status paused`, `fusee queues`, `fusee workers`.

**For programs**: with `--json` the result is one JSON document on standard output (a stream, such as
`run list --watch`, is one document a line), and an error is
`{"error": {"kind": "not_found", "message": "...", "exit": 3}}` on standard error. Objects have the same
fields as in the REST API; lists are in `items`. Remarks for people go to standard error, so that
standard output can be piped.
"""


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name, in the order of the help; a group before its own."""
    for listed in SECTIONS.values():
        for command in listed:
            yield from _walk(f"fusee {command.name}", command)


def _walk(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            yield from _walk(f"{name} {inner.name}", inner)


def page() -> str:
    """The text of docs/cli.md."""
    parts = [HEAD, "## Options of every command\n\nThey are accepted before and after the command's name.\n"]
    parts += [_options(cli), "## Exit codes\n\n| code | meaning |\n|---|---|"]
    parts += [f"| {int(code)} | {meaning} |" for code, meaning in meanings().items()]
    parts.append("")
    for name, command in commands():
        parts.append(_section(name, command))
    return "\n".join(parts)


def _section(name: str, command: click.Command) -> str:
    text, example = _help(command)
    lines = [f"## {name}\n", text, ""]
    if not isinstance(command, click.Group) or command.invoke_without_command:
        usage = " ".join(command.collect_usage_pieces(click.Context(command)))
        lines += [f"```sh\n{name} {usage}\n```\n"]
        if options := _options(command):
            lines.append(options)
    if example:
        lines.append(f"```sh\n{example}\n```\n")
    return "\n".join(lines)


def _help(command: click.Command) -> tuple[str, str]:
    """(the prose, the example)."""
    prose, _, example = inspect.cleandoc(command.help or "").partition("\b\nExample:\n")
    return prose.strip(), inspect.cleandoc(example)


def _options(command: click.Command) -> str:
    rows = []
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            record = option.get_help_record(click.Context(command))
            if record is not None:
                names, meaning = (text.replace("|", "\\|").replace("  ", " ") for text in record)
                rows.append(f"| `{names}` | {meaning} |")
    return "\n".join(["| option | |", "|---|---|", *rows, ""]) if rows else ""


if __name__ == "__main__":
    (Path(__file__).parents[1] / "docs" / "cli.md").write_text(page(), encoding="utf-8")
