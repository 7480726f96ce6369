"""`fusee db`: the schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fusee.app.cli.opening import naming, sqlite_file
from fusee.surfaces.cli.answer import Answer
from fusee.surfaces.cli.commands import command
from fusee.surfaces.cli.exits import Exit, Failure
from fusee.surfaces.cli.options import Group, Shared

if TYPE_CHECKING:
    from fusee.engine.store.migrate import Upgraded

__all__ = ["db"]


@click.group(cls=Group)
def db() -> None:
    """Bring the database's schema up to date, or show its revision.

    `fusee up`, `server`, `dispatcher` and `worker` do the former themselves unless database.migrate is false.

    Example: fusee db upgrade --database postgresql://fusee@db/fusee
    """


@command()
async def upgrade(shared: Shared, /) -> Answer:
    """Create the schema, or bring it to this version, and show what that adds.

    Safe to repeat and to run from many places at once: they take turns. It adds tables and columns and takes
    nothing away, so servers, dispatchers and workers of the version before continue to work. A schema that a
    newer version made is left alone.

    Example: fusee db upgrade
    """
    from fusee.app.fusee import Fusee

    config = shared.load({"database": {"migrate": False}})
    with naming(config):
        async with Fusee(config=config) as app:
            _, wanted = await app.store.revision()
            did = await app.store.upgrade_and_tell()
    before, after = did.before, did.revision
    data = {
        "database": config.database.safe_url,
        "before": before,
        "revision": after,
        "wanted": wanted,
        "steps": [{"revision": number, "adds": what} for number, what in did.steps],
        "tables": list(did.tables),
        "columns": list(did.columns),
    }
    if before == after and after != wanted:
        return Answer(
            data, f"the schema, revision {after}, is newer than this version wants ({wanted}); left alone"
        )
    moved = f"was {before or 'empty'}" if before != after else "nothing to do"
    return Answer(data, f"{config.database.safe_url}: revision {after} ({moved})", say=_added(did))


def _added(did: Upgraded) -> list[str]:
    lines = [f"  {number}  {what}" for number, what in did.steps]
    if did.before is None or not did.steps:
        return lines  # all of it is new, or nothing
    if did.tables:
        lines.append(f"  new tables: {', '.join(did.tables)}")
    if did.columns:
        lines.append(f"  new columns: {', '.join(did.columns)}")
    return [*lines, "  nothing was changed or taken away: programs of the version before go on working"]


@command()
async def status(shared: Shared, /) -> Answer:
    """Show the schema's revision and the one that this version wants.

    Exits 1 when they differ, so that a deployment can ask.

    Example: fusee db status || fusee db upgrade
    """
    from fusee.app.fusee import Fusee

    config = shared.load({"database": {"migrate": False}})
    file = sqlite_file(config)
    if file is not None and not file.exists():
        raise Failure(f"there is no database at {file}: `fusee db upgrade` makes it", Exit.UNAVAILABLE)
    with naming(config):
        async with Fusee(config=config) as app:
            current, wanted = await app.store.revision()
    same, url = current == wanted, config.database.safe_url
    advice = "up to date" if same else f"this version wants {wanted}: run `fusee db upgrade`"
    revision = "no schema" if current is None else f"revision {current}"
    return Answer(
        {"database": url, "revision": current, "wanted": wanted, "up_to_date": same},
        f"{url}: {revision}, {advice}",
        exit=Exit.OK if same else Exit.FAILED,
    )


for command_ in (upgrade, status):
    db.add_command(command_)
