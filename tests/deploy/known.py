"""What Fusee has: its settings by variable, its commands with their flags."""

from __future__ import annotations

from collections.abc import Sequence

import click

from fusee.app.cli.root import cli
from fusee.config import Config
from fusee.config.keys import keys, variable

__all__ = ["check_command", "check_environment", "stop_seconds"]

NOT_SETTINGS = {"FUSEE_CONFIG"}


def check_environment(names: Sequence[str]) -> None:
    """Every FUSEE_ variable is a setting."""
    known = {variable(path) for path in keys()} | NOT_SETTINGS
    unknown = [name for name in names if name.startswith("FUSEE_") and name not in known]
    assert not unknown, f"not settings of Fusee: {unknown}"


def check_command(words: Sequence[str]) -> str:
    """The name of the command that these words call; anything it would refuse is an error. Runs nothing."""
    command: click.Command = cli
    context = cli.make_context("fusee", list(words))
    rest = [*context._protected_args, *context.args]
    while isinstance(command, click.Group) and (rest or not command.invoke_without_command):
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None and name is not None
        command = found
        context = command.make_context(name, rest, parent=context)
        rest = [*context._protected_args, *context.args]
    return context.command_path.removeprefix("fusee ")


def stop_seconds(config: Config) -> float:
    """How long a worker may take to stop: it drains, then stops what is left, then reports."""
    last_reports = 10.0  # Worker._drain waits so much beyond the grace
    return config.worker.drain_timeout + config.worker.grace + last_reports
