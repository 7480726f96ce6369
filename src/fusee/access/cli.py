"""`fusee key`: API keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from fusee.surfaces.cli.answer import Answer, Noun
from fusee.surfaces.cli.commands import command, lists, steer
from fusee.surfaces.cli.options import Group, option
from fusee.surfaces.cli.output import ago
from fusee.values.fields import shown

if TYPE_CHECKING:
    from fusee.access.service import KeyOperations
    from fusee.access.store import ApiKey
    from fusee.config import Config

__all__ = ["key"]


KEYS: Noun[ApiKey] = Noun(
    shape=shown,
    none="no keys yet: `fusee key create NAME` makes one",
    columns={
        ">id": lambda one: one.id,
        "name": lambda one: one.name,
        "role": lambda one: one.role,
        ">age": lambda one: ago(one.created_at),
        "": lambda one: one.revoked_at and f"revoked {ago(one.revoked_at)} ago",
    },
)


@click.group(cls=Group)
def key() -> None:
    """Create, list and revoke API keys.

    A server that listens on more than this machine needs a key to exist. Keys belong to a namespace, and have
    a role: a viewer looks, an operator also submits, cancels and retries, an admin also sets limits.

    Example: fusee key create deploy --role operator
    """


@command(create=True)
@click.argument("name")
@option(
    "--role",
    "What the key may do.",
    choices=("viewer", "operator", "admin"),
    default="operator",
    show_default=True,
)
async def create(keys: KeyOperations, config: Config, /, name: str, role: str) -> Answer:
    """Create a key and print it, once.

    Only its digest is stored: a key that was not written down cannot be shown again. That is also why there
    is no idempotency key here.

    Example:
      fusee key create deploy --role operator
      export FUSEE_API_KEY=$(fusee key create ci --role viewer --quiet)
    """
    key_id, secret = await keys.create(name, role)
    namespace = config.namespace
    return Answer(
        {"id": key_id, "name": name, "role": role, "namespace": namespace, "key": secret},
        lambda: click.echo(secret),
        say=[
            f"key {key_id} ({name}, {role}, namespace {namespace}); it is shown this once",
            "use it: curl -H 'Authorization: Bearer ...'",
        ],
    )


@lists(KEYS, limit=None)
async def list_keys(keys: KeyOperations, /) -> Sequence[ApiKey]:
    """List the keys of the namespace; never the keys themselves.

    Digests from the configuration (api.keys) are not listed.

    Example: fusee key list
    """
    return await keys.list()


@steer(KEYS, "key_id")
async def revoke(keys: KeyOperations, /, key_id: int) -> Answer:
    """Revoke a key: it is refused from now on.

    Example: fusee key revoke 3
    """
    await keys.revoke(key_id)
    return Answer({"id": key_id, "revoked": True}, f"key {key_id} is revoked")


for command_ in (create, list_keys, revoke):
    key.add_command(command_)
