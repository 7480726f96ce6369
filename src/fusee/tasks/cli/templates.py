"""`fusee template`: named sets of defaults and parameters from which tasks are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fusee.surfaces.cli.documents import read_documents
from fusee.surfaces.cli.opening import drive, opened
from fusee.surfaces.cli.options import Group, Shared
from fusee.surfaces.cli.output import Out, clean, table
from fusee.surfaces.cli.shapes import time_text

if TYPE_CHECKING:
    from fusee.tasks.model.template import TaskTemplate

__all__ = ["template"]

A_PAGE = 500


@click.group(cls=Group)
def template() -> None:
    """Keep what many tasks share: defaults with parameters, from which tasks are made.

    Example:
      fusee template apply templates.yaml
      fusee task create poll-billing --template poll --with service=billing
    """


def _object(one: TaskTemplate) -> dict[str, Any]:
    return {
        **one.spec.to_dict(),
        "namespace": one.namespace,
        "version": one.version,
        "created_at": time_text(one.created_at),
        "updated_at": time_text(one.updated_at),
    }


@template.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.pass_context
def apply(context: click.Context, files: tuple[str, ...]) -> None:
    """Make templates what files say: create them, or change them.

    A file is YAML, JSON or TOML: one template, a list, a list under `templates`, or several YAML documents;
    - is standard input. Applying the same file again changes nothing, and tasks that were made before stay as
    they are.

    Example: fusee template apply templates.yaml
    """
    drive(_apply(Shared.of(context), Out.of(context), files))


async def _apply(shared: Shared, out: Out, files: tuple[str, ...]) -> None:
    from fusee.errors import Invalid
    from fusee.tasks.service.templates import template_from

    specs = []
    for document in read_documents(files, "task"):
        listed = document.fields.get("templates")
        for fields in listed if isinstance(listed, list) and len(document.fields) == 1 else [document.fields]:
            try:
                specs.append(template_from(fields))
            except Invalid as error:
                raise document.refused(error) from None
    done = []
    async with opened(shared, create=True) as app:
        for spec in specs:
            made, action = await app.templates.apply(spec)
            done.append({"action": action, **_object(made)})
            if not out.json:
                out.show(f"template {made.name} {action}: version {made.version}")
    if out.json:
        out.data({"items": done})


@template.command("list")
@click.option("--limit", metavar="N", default=50, type=click.IntRange(1, 1000), help="At most so many.")
@click.pass_context
def list_templates(context: click.Context, limit: int) -> None:
    """List the templates, by name.

    Example: fusee template list
    """
    drive(_list(Shared.of(context), Out.of(context), limit))


async def _list(shared: Shared, out: Out, limit: int) -> None:
    async with opened(shared) as app:
        found = await app.templates.list(limit=limit)
    if out.json:
        out.data({"items": [_object(one) for one in found]})
        return
    drawn = table("name", ">version", "parameters", "description")
    for one in found:
        params = [name if param.required else f"[{name}]" for name, param in one.spec.params.items()]
        drawn.add_row(one.name, str(one.version), clean(" ".join(params)), clean(one.spec.description))
    out.show(drawn) if found else out.say("no template")


@template.command()
@click.argument("name")
@click.pass_context
def show(context: click.Context, name: str) -> None:
    """Show a template as YAML that `fusee template apply` takes.

    Example: fusee template show poll
    """
    drive(_export(Shared.of(context), Out.of(context), (name,)))


@template.command()
@click.argument("names", metavar="[NAME...]", nargs=-1)
@click.pass_context
def export(context: click.Context, names: tuple[str, ...]) -> None:
    """Print templates as YAML that `fusee template apply` takes; all of them, or those that are named.

    Example: fusee template export > templates.yaml
    """
    drive(_export(Shared.of(context), Out.of(context), names, whole=True))


async def _export(shared: Shared, out: Out, names: tuple[str, ...], *, whole: bool = False) -> None:
    async with opened(shared) as app:
        found = [await app.templates.get(name) for name in names]
        while whole and not names:
            page = await app.templates.list(after=found[-1].name if found else None, limit=A_PAGE)
            found += page
            if len(page) < A_PAGE:
                break
    if out.json and not whole:
        out.data(_object(found[0]))
        return
    written = [{key: value for key, value in one.spec.to_dict().items() if value} for one in found]
    document: dict[str, Any] = {"templates": written} if whole else written[0]
    if out.json:
        out.data(document)
        return
    from fusee.surfaces.cli.documents import write_document

    click.echo(write_document(document), nl=False)


@template.command()
@click.argument("name")
@click.option("--version", metavar="N", type=click.IntRange(1), help="Only if it is at this version.")
@click.pass_context
def delete(context: click.Context, name: str, version: int | None) -> None:
    """Delete a template; tasks that were made of it stay as they are.

    Example: fusee template delete poll
    """

    async def work(shared: Shared, out: Out) -> None:
        async with opened(shared) as app:
            await app.templates.delete(name, version=version)
        out.data({"name": name, "deleted": True}) if out.json else out.show(f"template {name} is deleted")

    drive(work(Shared.of(context), Out.of(context)))
