"""Submitting a file of runs, thousands a call."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sized
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING

from fusee.surfaces.cli.exits import Exit, Failure
from fusee.surfaces.cli.output import Out

if TYPE_CHECKING:
    from fusee.app.fusee import Fusee
    from fusee.engine.model.run import RunSpec

__all__ = ["submit_file"]

# A call is accepted whole or not at all, so this is also how much a broken line takes with it.
A_CALL = 5000


async def submit_file(app: Fusee, out: Out, name: str, *, allow_unknown: bool) -> list[int]:
    """Ids of the runs, in the order of the lines."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from fusee.errors import FuseeError

    console = out.progress_console()
    ids: list[int] = []
    made = 0
    with ExitStack() as stack:
        lines = stack.enter_context(_open(name))
        total = _count(name)
        progress = stack.enter_context(
            Progress(
                TextColumn("submitting"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=console,
                transient=True,
                disable=not console.is_terminal,
            )
        )
        bar = progress.add_task("submitting", total=total)
        for first, last, specs in _calls(lines, name, ids):
            try:
                accepted = await app.runs.submit(specs, allow_unknown=allow_unknown)
            except FuseeError as error:
                raise Failure(
                    f"{name}, lines {first} to {last}: {error} ({len(ids)} runs were accepted before them)",
                    Exit.REFUSED,
                ) from error
            ids += [run.id for run in accepted]
            made += sum(run.created for run in accepted)
            progress.update(bar, completed=len(ids))
    known = len(ids) - made
    if out.json:
        span = {"first_id": min(ids, default=None), "last_id": max(ids, default=None)}
        out.data({"accepted": len(ids), "created": made, **span})
    else:
        out.show(f"{made} runs submitted" + (f", {known} known by their keys" if known else ""))
    return ids


def _calls(lines: IO[str], name: str, accepted: Sized) -> Iterator[tuple[int, int, list[RunSpec]]]:
    """(first line, last line, the runs in between), a call's worth each."""
    from fusee.errors import Invalid
    from fusee.runs.service.runs import spec_from

    specs: list[RunSpec] = []
    first = number = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        first = first or number
        try:
            specs.append(spec_from(json.loads(line)))
        except (ValueError, Invalid) as error:
            why = f"not JSON: {error}" if isinstance(error, ValueError) else str(error)
            raise Failure(
                f"{name}:{number}: {why} ({len(accepted)} runs were accepted before)", Exit.REFUSED
            ) from None
        if len(specs) == A_CALL:
            yield first, number, specs
            specs, first = [], 0
    if specs:
        yield first, number, specs


def _open(name: str) -> AbstractContextManager[IO[str]]:
    if name == "-":
        return nullcontext(sys.stdin)
    try:
        return Path(name).open(encoding="utf-8")
    except OSError as error:
        raise Failure(f"cannot read {name}: {error.strerror}", Exit.NOT_FOUND) from None


def _count(name: str) -> int | None:
    """How many lines there will be, for the bar; a stream does not say."""
    if name == "-" or not Path(name).is_file():
        return None
    with Path(name).open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b"")) or None
