"""Task templates: defining them, and creating tasks from them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from fusee.engine.store.request_keys import KeyedRequest
from fusee.errors import Conflict, Invalid, NotFound
from fusee.tasks.fields import ALIASES, HTTP, SCHEDULES, TASK, WAYS, object_from
from fusee.tasks.model.template import LABEL, TEMPLATE, TaskTemplate, TemplateSpec
from fusee.tasks.store.store import TaskStore
from fusee.tasks.store.templates import TaskTemplates
from fusee.values.merging import merged
from fusee.values.names import check_within

__all__ = ["TemplateOperations", "template_from"]

LONGEST_LIST = 1000


class TemplateOperations:
    """The templates of one namespace."""

    def __init__(self, store: TaskStore) -> None:
        self.store = store

    @property
    def templates(self) -> TaskTemplates:
        return TaskTemplates(self.store.engine.database, self.store.engine.namespace)

    async def create(self, fields: Mapping[str, Any] | TemplateSpec) -> TaskTemplate:
        return (await self.create_once(None, fields))[0]

    async def create_once(
        self, idempotency_key: str | None, fields: Mapping[str, Any] | TemplateSpec
    ) -> tuple[TaskTemplate, bool]:
        """(the template, whether it is new): the same request under the same key gets the same one."""
        spec = _spec(fields)
        request = KeyedRequest.of(idempotency_key, "template", spec.to_dict())
        template = await self.templates.create(spec, request)
        return template, request is None or not request.repeated

    async def get(self, name: str) -> TaskTemplate:
        return await self.templates.get(name)

    async def list(self, *, after: str | None = None, limit: int = 50) -> Sequence[TaskTemplate]:
        """By name."""
        check_within("limit", limit, LONGEST_LIST)
        return await self.templates.list(after=after, limit=limit)

    async def replace(
        self, name: str, fields: Mapping[str, Any] | TemplateSpec, *, version: int | None = None
    ) -> TaskTemplate:
        """Replace its definition; tasks that were created from it stay as they are."""
        spec = _spec(fields)
        if spec.name != name:
            raise Conflict("a template keeps its name: create another, and delete this one")
        return await self.templates.replace(name, spec, version)

    async def apply(self, fields: Mapping[str, Any] | TemplateSpec) -> tuple[TaskTemplate, str]:
        """Create it, or make it what is written; also returns `created`, `updated` or `unchanged`."""
        spec = _spec(fields)
        try:
            before = await self.templates.get(spec.name)
        except NotFound:
            try:
                return await self.templates.create(spec), "created"
            except Conflict:  # someone else made it just now
                before = await self.templates.get(spec.name)
        after = await self.templates.replace(spec.name, spec)
        return after, "unchanged" if after.version == before.version else "updated"

    async def delete(self, name: str, *, version: int | None = None) -> None:
        await self.templates.delete(name, version)

    async def expanded(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields of a task that names a `template`: those of the template with the parameters `with`, and
        what the task says itself over them. Other fields are returned as they are."""
        if not isinstance(fields, Mapping) or not {"template", "with"} & fields.keys():
            return fields
        name = fields.get("template")
        if not isinstance(name, str):
            raise Invalid("template must be the name of a template; `with` goes with it", field="template")
        try:
            spec = (await self.templates.get(name)).spec
        except NotFound:
            raise Invalid(f"there is no template {name[:60]!r}: create it first", field="template") from None
        given = fields.get("with")
        try:
            made = spec.make({} if given is None else object_from(given, "with"))
        except ValueError as error:
            raise Invalid(f"with: template {name}: {error}", field="with") from None
        own = {key: value for key, value in fields.items() if key not in ("template", "with")}
        said = {ALIASES.get(key, key) for key in own if own[key] is not None}
        for group in (SCHEDULES, (*WAYS, "target_url")):  # one of each: the task's own takes its place
            if said & set(group):
                said |= set(group)
        made = {key: value for key, value in made.items() if key in own or ALIASES.get(key, key) not in said}
        labels = merged(made.get("labels"), own.get("labels") or {})
        return {**merged(made, own), "labels": {**labels, LABEL: name}}


def template_from(given: Mapping[str, Any]) -> TemplateSpec:
    """A `TemplateSpec` of what a caller wrote; says which field is wrong."""
    spec = TEMPLATE.read(given)
    known = [*TASK.fields, *HTTP, *ALIASES, "template", "with"]
    for name in spec.task:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
            raise Invalid(f"task has no {str(name)[:60]!r}; {hint}", field=f"task.{str(name)[:60]}")
    return spec


def _spec(fields: Mapping[str, Any] | TemplateSpec) -> TemplateSpec:
    return fields if isinstance(fields, TemplateSpec) else template_from(fields)
