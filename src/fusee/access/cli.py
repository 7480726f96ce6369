"""`fusee key`: API keys."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from fusee.access.principal import EVERYWHERE
from fusee.surfaces.cli.answer import Answer, Noun
from fusee.surfaces.cli.commands import command, lists, steer
from fusee.surfaces.cli.options import Group, duration, option
from fusee.surfaces.cli.output import ago, human
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
        "key": lambda one: one.prefix and f"{one.prefix}…",
        "role": lambda one: one.role,
        "also": lambda one: ", ".join(f"{where}={role}" for where, role in one.grants.items()),
        ">age": lambda one: ago(one.created_at),
        ">used": lambda one: one.last_used_at and ago(one.last_used_at),
        "": lambda one: _end(one),
    },
)


def _end(one: ApiKey) -> str | None:
    """Whether the key has ended, or when it will."""
    if one.revoked_at is not None:
        return f"revoked {ago(one.revoked_at)} ago"
    if one.expires_at is None:
        return None
    left = one.expires_at - time.time_ns() // 1000
    return f"expires in {human(left / 1e6)}" if left > 0 else f"expired {ago(one.expires_at)} ago"


@click.group(cls=Group)
def key() -> None:
    """Create, list, rotate and revoke API keys.

    A server that listens on more than this machine needs a key to exist. A key belongs to a namespace and has
    a role there: a viewer looks, an operator also creates, starts, cancels and retries work, an admin also
    manages keys. It can have roles in other namespaces as well.

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
@option("--grant NAMESPACE=ROLE", "A role in another namespace; can be repeated.", multiple=True)
@option("--platform", "Admin of every namespace.")
@option(
    "--expires-in TIME", "The key stops working after this long, such as 90d.", callback=duration(least=1)
)
async def create(
    keys: KeyOperations,
    config: Config,
    /,
    name: str,
    role: str,
    grant: Sequence[str],
    platform: bool,
    expires_in: float | None,
) -> Answer:
    """Create a key and print it, once.

    Only its digest is stored: a key that was not written down cannot be shown again. That is also why there
    is no idempotency key here.

    Example:
      fusee key create deploy --role operator
      fusee key create reports --role viewer --grant billing=viewer --expires-in 90d
      export FUSEE_API_KEY=$(fusee key create ci --role viewer --quiet)
    """
    grants = dict(_grant(one) for one in grant)
    if platform:
        grants[EVERYWHERE] = "platform"
    key_id, secret = await keys.create(name, role, grants=grants, expires_in=expires_in)
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
@option("--overlap TIME", "The old key works this much longer.", default="24h", callback=duration())
async def rotate(keys: KeyOperations, /, key_id: int, overlap: float) -> Answer:
    """Replace a key by a new one with the same name, role and grants.

    The new key is printed, once. The old one works for the overlap, so that its users can change to the new
    one; `--overlap 0s` ends it now.

    Example: fusee key rotate 3 --overlap 2h
    """
    new, secret = await keys.rotate(key_id, overlap=overlap)
    return Answer(
        {"id": new.id, "name": new.name, "role": new.role, "replaces": key_id, "key": secret},
        lambda: click.echo(secret),
        say=[f"key {new.id} ({new.name}, {new.role}) replaces key {key_id}; it is shown this once"],
    )


@steer(KEYS, "key_id")
async def revoke(keys: KeyOperations, /, key_id: int) -> Answer:
    """Revoke a key: it is refused from now on.

    Example: fusee key revoke 3
    """
    await keys.revoke(key_id)
    return Answer({"id": key_id, "revoked": True}, f"key {key_id} is revoked")


def _grant(text: str) -> tuple[str, str]:
    namespace, equals, role = text.partition("=")
    if not equals:
        raise click.BadParameter(
            f"{text!r} must be NAMESPACE=ROLE, such as billing=viewer", param_hint="--grant"
        )
    return namespace, role


for command_ in (create, list_keys, rotate, revoke):
    key.add_command(command_)
