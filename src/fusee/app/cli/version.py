"""`fusee version`."""

from __future__ import annotations

import platform
from importlib import metadata

import click

from fusee.surfaces.cli.options import Command
from fusee.surfaces.cli.output import Out

__all__ = ["version"]

PARTS = ("sqlalchemy", "fastapi", "uvicorn", "asyncpg", "asyncmy", "uvloop")


@click.command(cls=Command)
@click.pass_context
def version(context: click.Context) -> None:
    """Tell the version, and of what it stands on.

    Put this into a bug report.

    Example: fusee version --json
    """
    import sqlite3

    from fusee.version import __version__

    out = Out.of(context)
    about: dict[str, str | None] = {
        "fusee": __version__,
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
        "sqlite": sqlite3.sqlite_version,
    }
    for part in PARTS:
        try:
            about[part] = metadata.version(part)
        except metadata.PackageNotFoundError:
            about[part] = None
    if out.json:
        out.data(about)
    else:
        for name, text in about.items():
            click.echo(f"{name:<11}{text or 'not installed'}")
