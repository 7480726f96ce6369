"""`fusee workflow`: define, start, look, wait, cancel, do again."""

from __future__ import annotations

import click

from fusee.surfaces.cli.options import Group
from fusee.workflows.cli.edit import apply, create, delete
from fusee.workflows.cli.look import list_workflows, runs, show
from fusee.workflows.cli.start import cancel, rerun, start, wait

__all__ = ["workflow"]


@click.group(cls=Group)
def workflow() -> None:
    """Define workflows, start them, follow them, stop them.

    A workflow is a named graph of nodes that is started as one. A node is a run that waits for others.

    Example:
      fusee workflow apply nightly.yaml
      fusee workflow start nightly -p day=2026-11-15 --wait
      fusee workflow runs nightly
    """


for command in (create, apply, list_workflows, show, start, runs, wait, cancel, rerun, delete):
    workflow.add_command(command)
