"""The models that describe answers, made from the declared fields of the things that are shown."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field, create_model

from fusee.values.fields import Mark, fields_of

__all__ = ["answer_of", "page_of"]


def answer_of(name: str, model: type, *, brief: bool = False, **more: Any) -> type[BaseModel]:
    """The answer that `shown` makes of a model; `more` are members that the route adds: a type, or a type and
    what it means."""
    hidden = {Mark.HIDDEN, Mark.DETAIL} if brief else {Mark.HIDDEN}
    members: dict[str, Any] = {
        field.name: (field.shown, Field(description=field.help or None))
        for field in fields_of(model).values()
        if not field.marks & hidden
    }
    for member, kind in more.items():
        kind, says = kind if isinstance(kind, tuple) else (kind, None)
        members[member] = (kind, Field(description=says))
    made: type[BaseModel] = create_model(name, __doc__=model.__doc__, **members)
    return made


def page_of(item: type[BaseModel], *, name: str = "") -> type[BaseModel]:
    """A page of such answers."""
    members: dict[str, Any] = {"items": (list[item], ...), "next_cursor": (str | None, ...)}  # type: ignore[valid-type]
    noun = item.__name__.removesuffix("Out").removesuffix("Summary").removesuffix("Brief")
    made: type[BaseModel] = create_model(name or f"{noun}Page", **members)
    return made
