"""`fusee business`: the registry of businesses that are reached over HTTP."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from fusee.bulk.cli.shapes import business_object
from fusee.surfaces.cli.inputs import json_or_text, member_from
from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Group, Shared
from fusee.surfaces.cli.output import Out, clean, table

if TYPE_CHECKING:
    from fusee.app.fusee import Fusee
    from fusee.bulk.model.business import RegisteredBusiness

__all__ = ["business"]

VERSION = click.option(
    "--version", metavar="N", type=click.IntRange(1), help="Only if it is at this version."
)


@click.group(cls=Group)
def business() -> None:
    """Register services that handle the items of bulk jobs over HTTP.

    Any worker that may make HTTP calls serves them; businesses in Python need no registration.

    Example:
      fusee business register mail --item https://crm.example/mail --default concurrency=16
      fusee bulk create newsletter --business mail --source users.csv --start --wait
    """


_ADDRESSES = (
    ("--item", "POSTed to for each item; or --chunk."),
    ("--chunk", "POSTed to for up to --chunk-size items."),
    ("--undo", "POSTed to for what is to be undone."),
    ("--on-create", "Asked before a job exists."),
    ("--before-run", "Called before a job runs; may take 30 minutes."),
    ("--on-stop", "Told when a job has stopped."),
    ("--on-finish", "Told when a job has finished."),
)


def _fields(function: Callable[..., None]) -> Callable[..., None]:
    """An option for each field of a business."""
    options = [click.option(name, metavar="URL", help=text) for name, text in _ADDRESSES]
    options += [
        click.option("--chunk-size", metavar="N", type=click.IntRange(1), help="[default: 100]"),
        click.option("--header", "headers", metavar="NAME:VALUE", multiple=True, help="Sent every time."),
        click.option("--timeout", metavar="TIME", help="For a call about items. [default: 15s]"),
        click.option("--before-run-timeout", metavar="TIME", help="[default: 30m]"),
        click.option("--with-data/--without-data", default=None, help="Item calls carry the job's data."),
        click.option("--default", "defaults", metavar="FIELD=VALUE", multiple=True, help="Of its jobs."),
        click.option("--description", metavar="TEXT"),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@business.command()
@click.argument("name")
@_fields
@click.pass_context
def register(context: click.Context, /, name: str, **options: Any) -> None:
    """Register a business that is reached over HTTP.

    Example:
      fusee business register mail --chunk https://crm.example/mail --chunk-size 200 \\
        --header "Authorization: Bearer $TOKEN" --default rate=500
    """
    _do(context, lambda app: app.business_registry.register({"name": name, **_given(options)}), create=True)


@business.command()
@click.argument("name")
@_fields
@click.option(
    "--remove",
    "gone",
    metavar="FIELD",
    multiple=True,
    help="Take away: on_stop, headers.X-Key.",
)
@VERSION
@click.pass_context
def change(
    context: click.Context, /, name: str, gone: tuple[str, ...], version: int | None, **options: Any
) -> None:
    """Change some fields; jobs that run follow when they take a segment next.

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
    _do(context, lambda app: app.business_registry.update(name, changes, version=version))


@business.command("list")
@click.option("--limit", metavar="N", default=50, type=click.IntRange(1, 1000), help="At most so many.")
@click.pass_context
def list_businesses(context: click.Context, limit: int) -> None:
    """List all businesses that are known: of the registry, and those that workers have.

    Example: fusee business list
    """
    drive(_list(Shared.of(context), Out.of(context), limit))


async def _list(shared: Shared, out: Out, limit: int) -> None:
    async with opened(shared) as app:
        found = await app.business_registry.list(limit=limit)
    if out.json:
        out.data({"items": [business_object(one) for one in found]})
        return
    drawn = table("name", "kind", ">version", "items go to", "description")
    for one in found:
        spec = None if one.registered is None else one.registered.spec
        drawn.add_row(
            one.name,
            one.kind,
            "" if one.registered is None else str(one.registered.version),
            "workers that have it" if spec is None else clean(spec.handles),
            "" if spec is None else clean(spec.description),
        )
    out.show(drawn) if found else out.say("no business")


@business.command()
@click.argument("name")
@click.pass_context
def show(context: click.Context, name: str) -> None:
    """Show a business: its addresses and defaults. Header values are shown to nobody.

    Example: fusee business show mail
    """
    drive(_show(Shared.of(context), Out.of(context), name))


async def _show(shared: Shared, out: Out, name: str) -> None:
    async with opened(shared) as app:
        found = business_object(await app.business_registry.get(name))
    if out.json:
        out.data(found)
        return
    drawn = table("field", "value")
    for field, value in found.items():
        if value not in (None, "", {}, False):
            drawn.add_row(field, clean(value if isinstance(value, str) else json.dumps(value)))
    out.show(drawn)


@business.command()
@click.argument("name")
@VERSION
@click.pass_context
def delete(context: click.Context, name: str, version: int | None) -> None:
    """Delete a business; refused while a job that is not finished needs it.

    Example: fusee business delete mail
    """

    async def work(shared: Shared, out: Out) -> None:
        async with opened(shared) as app:
            await app.business_registry.delete(name, version=version)
        out.data({"name": name, "deleted": True}) if out.json else out.show(f"business {name} is deleted")

    drive(work(Shared.of(context), Out.of(context)))


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """The fields that were said."""
    fields = {name: value for name, value in options.items() if value not in (None, ())}
    if "headers" in fields:
        pairs = (header.partition(":") for header in fields["headers"])
        fields["headers"] = {name.strip(): value.strip() for name, _, value in pairs}
    if "defaults" in fields:
        members = (member_from(one, "--default") for one in fields["defaults"])
        fields["defaults"] = {name: json_or_text(value) for name, value in members}
    return fields


def _do(
    context: click.Context,
    command: Callable[[Fusee], Awaitable[RegisteredBusiness]],
    *,
    create: bool = False,
) -> None:
    async def work(shared: Shared, out: Out) -> None:
        from fusee.bulk.model.business import KnownBusiness

        async with opened(shared, create=create) as app:
            made = await command(app)
        shown = KnownBusiness(name=made.spec.name, kind="http", registered=made)
        if out.json:
            out.data(business_object(shown))
        else:
            out.show(f"business {made.spec.name}, version {made.version}: {made.spec.handles}")

    drive(work(Shared.of(context), Out.of(context)))
