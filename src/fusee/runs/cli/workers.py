"""`fusee worker list`, the registry, and `fusee worker drain`, which asks a worker to leave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from fusee.surfaces.cli.answer import Answer, Noun
from fusee.surfaces.cli.commands import command, lists
from fusee.surfaces.cli.exits import Exit, Failure
from fusee.surfaces.cli.options import duration, option
from fusee.surfaces.cli.output import Out, ago, human
from fusee.values.fields import shown

if TYPE_CHECKING:
    from fusee.engine.model.session import Session
    from fusee.runs.service.workers import WorkerOperations

__all__ = ["drain", "list_workers"]


def _memory(session: Session) -> str:
    from fusee.config.units import format_size

    memory = session.info.memory
    return "" if memory is None else f"{format_size(session.memory_free or 0)}/{format_size(memory)}"


def _handlers(session: Session) -> str:
    others = [f"({executor})" for executor in session.info.executors if executor != "python"]
    return ", ".join([*session.info.handlers, *others])


WORKERS: Noun[Session] = Noun(
    shape=shown,
    line=lambda worker: f"{worker.id}\t{worker.info.name}\t{worker.state}",
    none="no worker is alive: `fusee worker --app myproject.jobs:app` starts one",
    no_match="no worker matches",
    columns={
        ">id": lambda worker: worker.id,
        "name": lambda worker: worker.info.name,
        "state": lambda worker: worker.state,
        ">running": lambda worker: f"{worker.running}/{worker.info.capacity}",
        ">cpu": lambda worker: worker.info.cpu and f"{worker.cpu_free:g}/{worker.info.cpu:g}",
        ">memory": _memory,
        "queues": lambda worker: ", ".join(worker.info.queues),
        "region": lambda worker: worker.info.region,
        "version": lambda worker: worker.info.version,
        ">seen": lambda worker: f"{ago(worker.seen_at)} ago",
        "handlers": _handlers,
    },
)


@lists(WORKERS, limit=None)
@option("--all all_states", "Also workers that ended or were lost.")
@option(
    "--state",
    "Only workers in this state; down is ended or lost.",
    choices=("alive", "draining", "ended", "lost", "down"),
)
@option("--queue NAME", "Only workers that take runs from this queue.")
@option("--handler NAME", "Only workers that have this handler.")
@option("--region NAME", "Only workers of this region.")
@option("--release version VERSION", "Only workers with this version of Fusee.")
@option("--label labels NAME=VALUE", "Only workers with this label; repeatable.", multiple=True)
async def list_workers(
    workers: WorkerOperations, /, all_states: bool, labels: tuple[str, ...], **wanted: Any
) -> Sequence[Session]:
    """List the workers, what each can run and how busy it is. The same as `fusee workers`.

    A worker is alive while it renews its lease; one that stops doing so is lost, and its runs go to others.

    Example:
      fusee worker list
      fusee workers --queue mail --label gpu=yes
      fusee workers --all --json | jq '.items[] | select(.state == "lost")'
    """
    from fusee.runs.service.workers import WorkerFilter

    for text in labels:
        if not text.partition("=")[0] or "=" not in text:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--label")
    labelled = dict(text.split("=", 1) for text in labels)
    return await workers.list(WorkerFilter(labels=labelled, **wanted), all_states=all_states)


@command()
@click.argument("name")
@option("--wait TIME", "Wait this long for it to have left; exits 124 when it has not.", callback=duration())
async def drain(workers: WorkerOperations, out: Out, /, name: str, wait: float | None) -> Answer:
    """Ask a worker to leave, wherever it runs.

    From now on it claims nothing. It finishes what runs, hands back what does not end within its
    worker.drain_timeout, and its process ends, as with SIGTERM: nothing is lost and no attempt is spent. It
    sees this within two seconds. This cannot be undone: start it again. A supervisor that restarts processes
    will do just that.

    Example:
      fusee worker drain worker-7
      fusee worker drain worker-7 --wait 2m && echo "safe to turn off"
    """
    asked = await workers.drain(name)
    left = await workers.wait_until_down(asked, wait) if wait is not None else asked
    data = {"items": [shown(session) for session in asked], "left": len(asked) - len(left)}
    if wait is None or not left:
        return Answer(data, f"{name}: " + ("is draining" if wait is None else "has left"))
    Answer(data).print(out)
    held = sum(session.running for session in left)
    message = f"{name} still has {held} runs after {human(wait)}: it continues to drain"
    raise Failure(message, Exit.TIMED_OUT)
