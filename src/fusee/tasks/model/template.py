"""A task template: a named set of defaults and parameters from which tasks are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from fusee.engine.model.run_fields import JsonObject
from fusee.errors import Invalid
from fusee.values.fields import Form, Mark, conform
from fusee.values.kinds import TIME, Name, Text
from fusee.values.params import PARAMS, Param, bind
from fusee.values.placeholders import fill, names_in

__all__ = ["LABEL", "TEMPLATE", "TaskTemplate", "TemplateSpec"]

LABEL = "template"
"""A task carries the name of the template that it was made from under this label."""
NOT_OF_A_TEMPLATE = ("name", "template", "with", "version", "status", "enabled")


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSpec:
    """What a caller asks for; checked when it is made. `task` has fields of a task; `{{param.x}}` in their
    texts stands for a parameter."""

    name: Annotated[str, Name(), "Unique in its namespace; it cannot be changed."]
    description: Annotated[str, Text(512, lines=True), "A text for people."] = ""
    params: Annotated[Mapping[str, Param], PARAMS, "What a task may, or must, give."] = field(
        default_factory=dict
    )
    task: Annotated[
        Mapping[str, Any],
        JsonObject(),
        "Fields of a task, as `POST /api/v1/tasks` takes them; `{{param.x}}` in a text stands for a"
        " parameter.",
    ]

    def __post_init__(self) -> None:
        conform(self)
        if not self.task:
            raise Invalid(
                'task must be an object with fields of a task, such as {"handler": "tidy"}', field="task"
            )
        for name in self.task:
            if name in NOT_OF_A_TEMPLATE:
                raise Invalid(f"task cannot have {name}: each task that is made has its own", field="task")
        known = {f"param.{name}" for name in self.params}
        used = {name for name in names_in(self.task) if name.startswith("param.")}
        own = self.task.get("payload")
        if isinstance(own, Mapping) and isinstance(own.get("params"), Mapping):
            known |= {f"param.{name}" for name in own["params"]}  # the http executor fills these in
        if unknown := sorted(used - known):
            raise Invalid(f"task uses {{{{{unknown[0]}}}}}, which params does not declare", field="task")

    def make(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a task with these parameters; a ValueError names what is missing or unknown."""
        values = {f"param.{name}": value for name, value in bind(self.params, given).items()}
        fields: dict[str, Any] = fill(self.task, values)
        return fields

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.description,
            "params": {name: param.to_dict() for name, param in self.params.items()},
            "task": dict(self.task),
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> TemplateSpec:
        params = {name: Param.from_dict(param) for name, param in given.get("params", {}).items()}
        return cls(
            name=given["name"], description=given.get("description", ""), params=params, task=given["task"]
        )


TEMPLATE = Form(
    called="a template", spec=TemplateSpec, example='{"name": "call", "params": {"url": {}}, "task": {…}}'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTemplate:
    """A template as people see it, at some version."""

    namespace: str
    spec: Annotated[TemplateSpec, Mark.FLAT]
    version: int
    created_at: Annotated[int, TIME]
    updated_at: Annotated[int, TIME]

    @property
    def name(self) -> str:
        return self.spec.name
