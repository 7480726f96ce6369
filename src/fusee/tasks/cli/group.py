"""`fusee task`: make, change, steer, fire, explain, simulate, apply."""

from __future__ import annotations

import click

from fusee.surfaces.cli.options import Group
from fusee.tasks.cli.apply import apply, diff
from fusee.tasks.cli.backfill import backfill
from fusee.tasks.cli.create import create
from fusee.tasks.cli.edit import edit
from fusee.tasks.cli.explain import explain
from fusee.tasks.cli.export import export
from fusee.tasks.cli.list import list_tasks
from fusee.tasks.cli.runs import runs
from fusee.tasks.cli.show import next_fires, show
from fusee.tasks.cli.simulate import simulate
from fusee.tasks.cli.steer import clear_queue, delete, disable, enable, pause, resume
from fusee.tasks.cli.trigger import restart, trigger

__all__ = ["task"]


@click.group(cls=Group)
def task() -> None:
    """Make tasks, steer them, fire them, and ask why they ran or did not.

    A task says what to run, when, and under which policies. Each time that it is due leaves a row: it ran, or
    it was skipped, queued or missed, with the rule that decided.

    Example:
      fusee task create nightly --cron "0 3 * * *" --timezone Europe/Berlin --handler tidy
      fusee task list
      fusee task explain nightly "2027-01-31 03:00"
      fusee task apply tasks.yaml
    """


for command in (
    create, list_tasks, show, next_fires, edit, delete, enable, disable, pause, resume,
    clear_queue, trigger, restart, backfill, runs, explain, simulate, apply, diff, export,
):  # fmt: skip
    task.add_command(command)
