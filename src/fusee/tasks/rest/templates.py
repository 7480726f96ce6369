"""Task templates: create, list, get, replace, delete; `POST /api/v1/tasks` creates tasks from them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request, Response

from fusee.surfaces.rest.answers import answer_of, page_of
from fusee.surfaces.rest.asking import Body, IdempotencyKey, Viewer, audit, checked_key
from fusee.surfaces.rest.bodies import VERSION, IfMatch, version_from
from fusee.surfaces.rest.context import service_of
from fusee.surfaces.rest.definitions import Definition, name_of
from fusee.surfaces.rest.paging import Page, Pager, name_at
from fusee.surfaces.rest.paths import named
from fusee.tasks.model.template import TEMPLATE as FORM
from fusee.tasks.model.template import TaskTemplate
from fusee.tasks.service.templates import TemplateOperations
from fusee.values.fields import shown

__all__ = ["TemplateOut", "router"]

router = APIRouter(prefix="/api/v1/task-templates", tags=["tasks"])

PATH, _ = named("template", "template")
TEMPLATES = Pager("m1", name_at)
TemplateOut = answer_of("TemplateOut", TaskTemplate)
TemplatePage = page_of(TemplateOut)
DEFINITION = Definition(
    noun="template",
    place="task-templates",
    form=FORM,
    answer=TemplateOut,
    create=Body("TemplateIn", FORM.schema("A template to make.")),
    replace=Body(
        "TemplateReplaceIn",
        {
            **FORM.schema(
                "A template as it shall be. What the server adds is ignored, so that an answer can be sent"
                " back; the name may be left out, since a template keeps it.",
                version=VERSION,
            ),
            "required": ["task"],
        },
    ),
    example={
        "name": "greeting",
        "params": {"who": {}, "hour": {"default": 9}},
        "task": {"cron": "0 {{param.hour}} * * *", "handler": "greet", "payload": {"name": "{{param.who}}"}},
    },
)
Shown = dict[str, Any]
Name = Annotated[str, name_of("template")]


def _answer(response: Response, template: TaskTemplate) -> Shown:
    return DEFINITION.at_version(response, template.version, shown(template))


@router.post("", **DEFINITION.creating)
async def create_template(
    request: Request, response: Response, idempotency_key: IdempotencyKey = None
) -> Shown:
    """Create a template; `POST /api/v1/tasks` with `template` and `with` creates tasks from it."""
    template, new = await service_of(request, TemplateOperations).create_once(
        checked_key(idempotency_key), await DEFINITION.fields(request)
    )
    DEFINITION.created(request, response, template.name, new, template=template.name)
    return _answer(response, template)


@router.get("", dependencies=[Viewer], response_model=TemplatePage)
async def list_templates(request: Request, page: Page) -> Shown:
    """By name."""
    after = TEMPLATES.after(page.cursor)
    found = await service_of(request, TemplateOperations).list(after=after, limit=page.asked)
    return TEMPLATES.page(page, found, lambda template: template.name, shown)


@router.get(PATH, **DEFINITION.getting)
async def get_template(request: Request, response: Response, name: Name) -> Shown:
    return _answer(response, await service_of(request, TemplateOperations).get(name))


@router.put(PATH, **DEFINITION.replacing)
async def replace_template(
    request: Request, response: Response, name: Name, if_match: IfMatch = None
) -> Shown:
    """Replace its definition as a whole. Tasks that were created from it stay as they are."""
    fields, version = await DEFINITION.replacement_of(request, name, if_match)
    template = await service_of(request, TemplateOperations).replace(name, fields, version=version)
    audit(request, "template replaced", template=name, version=template.version)
    return _answer(response, template)


@router.delete(PATH, **DEFINITION.deleting)
async def delete_template(request: Request, name: Name, if_match: IfMatch = None) -> Response:
    """Delete it. Tasks that were created from it stay as they are."""
    await service_of(request, TemplateOperations).delete(name, version=version_from(None, if_match))
    audit(request, "template deleted", template=name)
    return Response(status_code=204)
