"""`fusee db`: the schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fusee.surfaces.cli.exits import Exit, Failure
from fusee.surfaces.cli.opening import drive, naming, sqlite_file
from fusee.surfaces.cli.options import Group, Shared
from fusee.surfaces.cli.output import Out

if TYPE_CHECKING:
    from fusee.engine.store.migrate import Upgraded

__all__ = ["db"]


@click.group(cls=Group)
def db() -> None:
    """Bring the database's schema up to date, or look at it.

    `fusee up` and its kin do the former themselves unless database.migrate is false.

    Example: fusee db upgrade --database postgresql://fusee@db/fusee
    """


@db.command()
@click.pass_context
def upgrade(context: click.Context) -> None:
    """Create the schema, or bring it to this version, and tell what that adds.

    Safe to repeat and to run from many places at once: they take turns. It adds tables and columns and takes
    nothing away, so servers, dispatchers and workers of the version before go on working. A schema that a
    newer version made is left alone.

    Example: fusee db upgrade
    """
    drive(_upgrade(Shared.of(context), Out.of(context)))


async def _upgrade(shared: Shared, out: Out) -> None:
    from fusee.app.fusee import Fusee

    config = shared.load({"database": {"migrate": False}})
    with naming(config):
        async with Fusee(config=config) as app:
            _, wanted = await app.store.revision()
            did = await app.store.upgrade_and_tell()
    before, after = did.before, did.revision
    if out.json:
        out.data(
            {
                "database": config.database.safe_url,
                "before": before,
                "revision": after,
                "wanted": wanted,
                "steps": [{"revision": number, "adds": what} for number, what in did.steps],
                "tables": list(did.tables),
                "columns": list(did.columns),
            }
        )
    elif before == after and after != wanted:
        out.show(f"the schema, revision {after}, is newer than this version wants ({wanted}); left alone")
    else:
        moved = f"was {before or 'empty'}" if before != after else "nothing to do"
        out.show(f"{config.database.safe_url}: revision {after} ({moved})")
        _tell_added(out, did)


def _tell_added(out: Out, did: Upgraded) -> None:
    for number, what in did.steps:
        out.say(f"  {number}  {what}")
    if did.before is None or not did.steps:
        return  # all of it is new, or nothing
    if did.tables:
        out.say(f"  new tables: {', '.join(did.tables)}")
    if did.columns:
        out.say(f"  new columns: {', '.join(did.columns)}")
    out.say("  nothing was changed or taken away: programs of the version before go on working")


@db.command()
@click.pass_context
def status(context: click.Context) -> None:
    """Tell the schema's revision and the one this version wants.

    Exits 1 when they differ, so that a deployment can ask.

    Example: fusee db status || fusee db upgrade
    """
    drive(_status(Shared.of(context), Out.of(context)))


async def _status(shared: Shared, out: Out) -> None:
    from fusee.app.fusee import Fusee

    config = shared.load({"database": {"migrate": False}})
    file = sqlite_file(config)
    if file is not None and not file.exists():
        raise Failure(f"there is no database at {file}: `fusee db upgrade` makes it", Exit.UNAVAILABLE)
    with naming(config):
        async with Fusee(config=config) as app:
            current, wanted = await app.store.revision()
    current_is_it = current == wanted
    if out.json:
        url = config.database.safe_url
        out.data({"database": url, "revision": current, "wanted": wanted, "up_to_date": current_is_it})
    else:
        advice = "up to date" if current_is_it else f"this version wants {wanted}: run `fusee db upgrade`"
        out.show(f"{config.database.safe_url}: {revision_text(current)}, {advice}")
    if not current_is_it:
        raise click.exceptions.Exit(int(Exit.FAILED))


def revision_text(current: str | None) -> str:
    return "no schema" if current is None else f"revision {current}"
