"""`fusee run`: submit, list, show, cancel, retry, wait."""

from __future__ import annotations

import click

from fusee.runs.cli.list import list_runs
from fusee.runs.cli.show import show
from fusee.runs.cli.steer import cancel, retry
from fusee.runs.cli.submit import submit
from fusee.runs.cli.wait import wait
from fusee.surfaces.cli.options import Group

__all__ = ["run"]


@click.group(cls=Group)
def run() -> None:
    """Submit runs, look at them, wait for them, stop them, do them again.

    A run is one piece of work: a call of a handler, a program, or an HTTP request.

    Example:
      fusee run submit greet -p name=Ada --wait
      fusee run list --status failed
    """


for command in (submit, list_runs, show, wait, cancel, retry):
    run.add_command(command)
