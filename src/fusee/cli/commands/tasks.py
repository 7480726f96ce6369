"""`fusee task`: make, change, steer, fire, explain, simulate, apply."""

from __future__ import annotations

import click

from fusee.cli.commands.task_apply import apply, diff
from fusee.cli.commands.task_backfill import backfill
from fusee.cli.commands.task_create import create
from fusee.cli.commands.task_edit import edit
from fusee.cli.commands.task_explain import explain
from fusee.cli.commands.task_export import export
from fusee.cli.commands.task_list import list_tasks
from fusee.cli.commands.task_runs import runs
from fusee.cli.commands.task_show import next_fires, show
from fusee.cli.commands.task_simulate import simulate
from fusee.cli.commands.task_steer import clear_queue, delete, disable, enable, pause, resume
from fusee.cli.commands.task_trigger import restart, trigger
from fusee.cli.options import Group

__all__ = ["task"]


@click.group(cls=Group)
def task() -> None:
    """Make tasks, steer them, fire them, and ask why they ran or did not.

    A task says what to run, when, and under which policies. Each time that it is due leaves a row: it ran, or
    it was skipped, queued or missed, with the rule that decided.

    \b
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
