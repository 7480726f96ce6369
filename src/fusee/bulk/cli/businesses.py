"""`fusee business`: the registry of businesses that are called over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from fusee.bulk.fields import BUSINESS
from fusee.surfaces.cli.answer import Answer, Noun
from fusee.surfaces.cli.commands import command, lists, steer
from fusee.surfaces.cli.inputs import json_or_text, member_from
from fusee.surfaces.cli.options import KEY, VERSION, Group, option, options_of
from fusee.surfaces.cli.output import facts
from fusee.values.fields import shown

if TYPE_CHECKING:
    from fusee.bulk.business import HttpBusiness, KnownBusiness, RegisteredBusiness
    from fusee.bulk.service.businesses import BusinessOperations

__all__ = ["business"]

ADDRESSES = ("item", "chunk", "undo", "on_create", "before_run", "on_stop", "on_finish")


@click.group(cls=Group)
def business() -> None:
    """Register services that handle the items of bulk jobs over HTTP.

    The business is the bulk handler with its callbacks. Any worker that may make HTTP calls serves a
    registered one; businesses in Python need no registration.

    Example: fusee business register mail --item https://crm.example/mail --default concurrency=16 fusee bulk
    create newsletter --business mail --source users.csv --start --wait
    """


def _spec(one: KnownBusiness) -> HttpBusiness | None:
    return None if one.registered is None else one.registered.spec


def _line(one: KnownBusiness) -> str:
    made = one.registered
    return f"business {one.name}" + (f", version {made.version}: {made.spec.handles}" if made else "")


def _whole(one: KnownBusiness) -> Sequence[Any]:
    told = ((name, value) for name, value in shown(one).items() if value not in (None, "", {}, False))
    return [facts((name, value if isinstance(value, str) else json.dumps(value)) for name, value in told)]


BUSINESSES: Noun[KnownBusiness] = Noun(
    shape=shown,
    line=_line,
    whole=_whole,
    none="no business",
    columns={
        "name": lambda one: one.name,
        "kind": lambda one: one.kind,
        ">version": lambda one: one.registered and one.registered.version,
        "items go to": lambda one: spec.handles if (spec := _spec(one)) else "workers that have it",
        "description": lambda one: spec.description if (spec := _spec(one)) else "",
    },
)


def _fields(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds an option for each field of a business."""
    for add in (
        options_of(BUSINESS, "description"),
        option("--default defaults FIELD=VALUE", BUSINESS.fields["defaults"].help, multiple=True),
        option("--with-data/--without-data", BUSINESS.fields["with_data"].help, default=None),
        option("--header headers NAME:VALUE", BUSINESS.fields["headers"].help, multiple=True),
        options_of(BUSINESS, "chunk_size", "timeout", "before_run_timeout"),
        options_of(BUSINESS, *ADDRESSES, metavar="URL"),
    ):
        function = add(function)
    return function


def _answer(made: RegisteredBusiness, **more: Any) -> Answer:
    from fusee.bulk.business import KnownBusiness

    return BUSINESSES.one(KnownBusiness(name=made.spec.name, kind="http", registered=made), **more)


@command(create=True)
@click.argument("name")
@_fields
@KEY
async def register(
    business_registry: BusinessOperations, /, name: str, key: str | None, **options: Any
) -> Answer:
    """Register a business that is called over HTTP.

    Example:
      fusee business register mail --chunk https://crm.example/mail --chunk-size 200 \\
        --header "Authorization: Bearer $TOKEN" --default rate=500
    """
    made, _ = await business_registry.register_once(key, {"name": name, **_given(options)})
    return _answer(made)


@command()
@click.argument("name")
@_fields
@option("--remove gone FIELD", "Remove a field: on_stop, headers.X-Key.", multiple=True)
@VERSION
async def change(
    business_registry: BusinessOperations, /, name: str, gone: tuple[str, ...], version: int | None,
    **options: Any,
) -> Answer:  # fmt: skip
    """Change some fields; running jobs follow when they take the next segment.

    Headers and defaults that are not named stay as they are.

    Example:
      fusee business change mail --timeout 30s --remove on_stop
      fusee business change mail --header "X-Team: ops" --remove headers.X-Old
    """
    changes = _given(options)
    for field in gone:
        whole, dot, member = field.partition(".")
        if dot:
            changes[whole] = {**changes.get(whole, {}), member: None}
        else:
            changes[whole.replace("-", "_")] = None
    if not changes:
        raise click.UsageError("say what to change, such as --timeout 30s")
    return _answer(await business_registry.update(name, changes, version=version))


@lists(BUSINESSES)
async def list_businesses(business_registry: BusinessOperations, /, limit: int) -> Sequence[KnownBusiness]:
    """List all known businesses: those in the registry, and those that workers have.

    Example: fusee business list
    """
    return await business_registry.list(limit=limit)


@command()
@click.argument("name")
async def show(business_registry: BusinessOperations, /, name: str) -> Answer:
    """Show a business: its addresses and defaults. Header values are never shown.

    Example: fusee business show mail
    """
    return BUSINESSES.all(await business_registry.get(name))


@steer(BUSINESSES, "name", "NAME")
@VERSION
async def delete(business_registry: BusinessOperations, /, name: str, version: int | None) -> Answer:
    """Delete a business; refused while a job that is not finished needs it.

    Example: fusee business delete mail
    """
    await business_registry.delete(name, version=version)
    return Answer({"name": name, "deleted": True}, f"business {name} is deleted")


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields that were given."""
    fields = {name: value for name, value in options.items() if value not in (None, ())}
    if "headers" in fields:
        pairs = (header.partition(":") for header in fields["headers"])
        fields["headers"] = {name.strip(): value.strip() for name, _, value in pairs}
    if "defaults" in fields:
        members = (member_from(one, "--default") for one in fields["defaults"])
        fields["defaults"] = {name: json_or_text(value) for name, value in members}
    return fields


for command_ in (register, change, list_businesses, show, delete):
    business.add_command(command_)
