"""`fusee key`: API keys."""

from __future__ import annotations

import time
from typing import Any

import click

from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Command, Group, Shared
from fusee.surfaces.cli.output import Out, clean, human, table
from fusee.surfaces.cli.shapes import time_text

__all__ = ["key"]


@click.group(cls=Group)
def key() -> None:
    """Make, list and revoke API keys.

    A server that listens on more than this machine needs a key to exist. Keys belong to a namespace, and have
    a role: a viewer looks, an operator also submits, cancels and retries, an admin also sets limits.

    Example: fusee key create deploy --role operator
    """


@key.command(cls=Command)
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(("viewer", "operator", "admin"), case_sensitive=False),
    default="operator",
    show_default=True,
)
@click.pass_context
def create(context: click.Context, name: str, role: str) -> None:
    """Make a key and print it, once.

    Only its digest is stored: a key that was not written down cannot be had again.

    Example:
      fusee key create deploy --role operator
      export FUSEE_API_KEY=$(fusee key create ci --role viewer --quiet)
    """
    drive(_create(Shared.of(context), Out.of(context), name, role))


async def _create(shared: Shared, out: Out, name: str, role: str) -> None:
    async with opened(shared, create=True) as app:
        key_id, secret = await app.keys.create(name, role)
        namespace = app.config.namespace
    if out.json:
        out.data({"id": key_id, "name": name, "role": role, "namespace": namespace, "key": secret})
    else:
        click.echo(secret)
        out.say(f"key {key_id} ({name}, {role}, namespace {namespace}); it is shown this once")
        out.say("use it: curl -H 'Authorization: Bearer ...'")


@key.command("list", cls=Command)
@click.pass_context
def list_keys(context: click.Context) -> None:
    """List the keys of the namespace; never the keys themselves.

    Digests from the configuration (api.keys) are not listed.

    Example: fusee key list
    """
    drive(_list(Shared.of(context), Out.of(context)))


async def _list(shared: Shared, out: Out) -> None:
    async with opened(shared) as app:
        keys = await app.keys.list()
    if out.json:
        rows: list[dict[str, Any]] = [
            {
                "id": one.id,
                "name": one.name,
                "role": one.role,
                "namespace": one.namespace,
                "created_at": time_text(one.created_at),
                "revoked_at": time_text(one.revoked_at),
            }
            for one in keys
        ]
        out.data({"items": rows})
        return
    if not keys:
        out.say("no keys yet: `fusee key create NAME` makes one")
        return
    drawn = table(">id", "name", "role", ">age", "")
    now = time.time_ns() // 1000
    for one in keys:
        gone = "" if one.revoked_at is None else f"revoked {human((now - one.revoked_at) / 1e6)} ago"
        drawn.add_row(str(one.id), clean(one.name), one.role, human((now - one.created_at) / 1e6), gone)
    out.show(drawn)


@key.command(cls=Command)
@click.argument("key_id", metavar="ID", type=click.IntRange(1))
@click.pass_context
def revoke(context: click.Context, key_id: int) -> None:
    """Revoke a key: it opens nothing from now on.

    Example: fusee key revoke 3
    """
    drive(_revoke(Shared.of(context), Out.of(context), key_id))


async def _revoke(shared: Shared, out: Out, key_id: int) -> None:
    async with opened(shared) as app:
        await app.keys.revoke(key_id)
    if out.json:
        out.data({"id": key_id, "revoked": True})
    else:
        out.show(f"key {key_id} is revoked")
