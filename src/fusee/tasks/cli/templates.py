"""`fusee template`: named sets of defaults and parameters from which tasks are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from fusee.surfaces.cli.answer import Answer, Noun
from fusee.surfaces.cli.commands import command, lists, steer
from fusee.surfaces.cli.documents import read_documents, write_document
from fusee.surfaces.cli.options import VERSION, Group
from fusee.values.fields import shown

if TYPE_CHECKING:
    from fusee.tasks.model.template import TaskTemplate
    from fusee.tasks.service.templates import TemplateOperations

__all__ = ["template"]

A_PAGE = 500


@click.group(cls=Group)
def template() -> None:
    """Keep what many tasks share: defaults with parameters, from which tasks are made.

    Example:
      fusee template apply templates.yaml
      fusee task create poll-billing --template poll --with service=billing
    """


def _params(one: TaskTemplate) -> str:
    return " ".join(name if param.required else f"[{name}]" for name, param in one.spec.params.items())


TEMPLATES: Noun[TaskTemplate] = Noun(
    shape=shown,
    none="no template",
    columns={
        "name": lambda one: one.name,
        ">version": lambda one: one.version,
        "parameters": _params,
        "description": lambda one: one.spec.description,
    },
)


@command(create=True)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
async def apply(templates: TemplateOperations, /, files: Sequence[str]) -> Answer:
    """Make templates what files say: create them, or change them.

    A file is YAML, JSON or TOML: one template, a list, a list under `templates`, or several YAML documents;
    - is standard input. Applying the same file again changes nothing, and tasks that were made before stay as
    they are.

    Example: fusee template apply templates.yaml
    """
    from fusee.errors import Invalid
    from fusee.tasks.service.templates import template_from

    specs = []
    for document in read_documents(files, "template"):
        try:
            specs.append(template_from(document.fields))
        except Invalid as error:
            raise document.refused(error) from None
    done = [await templates.apply(spec) for spec in specs]
    lines = (f"template {made.name} {action}: version {made.version}" for made, action in done)
    return Answer({"items": [{"action": action, **shown(made)} for made, action in done]}, *lines)


@lists(TEMPLATES)
async def list_templates(templates: TemplateOperations, /, limit: int) -> Sequence[TaskTemplate]:
    """List the templates, by name.

    Example: fusee template list
    """
    return await templates.list(limit=limit)


@command()
@click.argument("name")
async def show(templates: TemplateOperations, /, name: str) -> Answer:
    """Show a template as YAML that `fusee template apply` takes.

    Example: fusee template show poll
    """
    found = await templates.get(name)
    return Answer(lambda: shown(found), lambda: click.echo(write_document(_written(found)), nl=False))


@command()
@click.argument("names", metavar="[NAME...]", nargs=-1)
async def export(templates: TemplateOperations, /, names: Sequence[str]) -> Answer:
    """Print templates as YAML that `fusee template apply` takes; all of them, or those that are named.

    Example: fusee template export > templates.yaml
    """
    found = [await templates.get(name) for name in names] if names else await _all(templates)
    document = {"templates": [_written(one) for one in found]}
    return Answer(document, lambda: click.echo(write_document(document), nl=False))


async def _all(templates: TemplateOperations) -> list[TaskTemplate]:
    found: list[TaskTemplate] = []
    while page := await templates.list(after=found[-1].name if found else None, limit=A_PAGE):
        found += page
    return found


def _written(one: TaskTemplate) -> dict[str, Any]:
    return {name: value for name, value in one.spec.to_dict().items() if value}


@steer(TEMPLATES, "name", "NAME")
@VERSION
async def delete(templates: TemplateOperations, /, name: str, version: int | None) -> Answer:
    """Delete a template; tasks that were made of it stay as they are.

    Example: fusee template delete poll
    """
    await templates.delete(name, version=version)
    return Answer({"name": name, "deleted": True}, f"template {name} is deleted")


for command_ in (apply, list_templates, show, export, delete):
    template.add_command(command_)
