"""The models that describe answers, made from the declared fields of the things that are shown."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import BaseModel, Field, create_model

from fusee.values.fields import Field as Declared
from fusee.values.fields import Inner, Mark, fields_of

__all__ = ["answer_of", "inner_answer", "page_of"]


def answer_of(name: str, model: type, *, brief: bool = False, **more: Any) -> type[BaseModel]:
    """The answer that `shown` makes of a model; `more` are members that the route adds: a type, or a type and
    what it means."""
    members = dict(_members(model, brief))
    for member, kind in more.items():
        kind, says = kind if isinstance(kind, tuple) else (kind, None)
        members[member] = (kind, Field(description=says))
    made: type[BaseModel] = create_model(name, __doc__=model.__doc__, **members)
    return made


def _members(model: type, brief: bool = False) -> Iterator[tuple[str, Any]]:
    hidden = {Mark.HIDDEN, Mark.DETAIL} if brief else {Mark.HIDDEN}
    for field in fields_of(model).values():
        if not field.marks & hidden:
            yield field.name, (_type_of(field), Field(description=field.help or None))


def _type_of(field: Declared) -> Any:
    if not isinstance(field.kind, Inner):
        return field.shown
    one: Any = inner_answer(field.kind.called, field.kind.model) if field.kind.called else dict[str, Any]
    shown = list[one] if field.kind.many else one
    return shown | None if field.optional else shown


@cache
def inner_answer(name: str, model: type) -> type[BaseModel]:
    """The answer of a model that others contain: one for all of them, since OpenAPI knows it by its name."""
    return answer_of(name, model)


def page_of(item: type[BaseModel], *, name: str = "") -> type[BaseModel]:
    """A page of such answers."""
    members: dict[str, Any] = {"items": (list[item], ...), "next_cursor": (str | None, ...)}  # type: ignore[valid-type]
    noun = item.__name__.removesuffix("Out").removesuffix("Summary").removesuffix("Brief")
    made: type[BaseModel] = create_model(name or f"{noun}Page", **members)
    return made
