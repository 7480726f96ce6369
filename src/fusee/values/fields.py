"""One declaration of a noun's fields, from which everything else about them is made.

A model is a dataclass whose fields are annotated with their kind, one sentence of help, and marks:

    concurrency: Annotated[int, Whole(0, 100_000), "Targets in progress at once; 0 means no cap."] = 32

From it come the check of a spec (`conform`), the reading of what a caller wrote (`Form.read`), the object
that REST and the command line show (`shown`), the schemas of OpenAPI (`Form.schema` and
`fusee.surfaces.rest.answers`) and the tables of the documentation (`tools/document_fields.py`). A property is
shown too when its return type is annotated.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass
from enum import Enum, auto
from functools import cache, cached_property
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from fusee.errors import Invalid
from fusee.values.kinds import JSON, Kind, or_null

__all__ = ["Alias", "As", "Field", "Form", "Inner", "Mark", "conform", "fields_of", "shown"]

S = TypeVar("S")


class Mark(Enum):
    """What is special about a field."""

    FLAT = auto()
    """Its value is another model, whose fields stand beside the others."""
    HIDDEN = auto()
    """It is not shown."""
    DETAIL = auto()
    """It is shown of one, and left out of lists."""
    INNER = auto()
    """Callers do not give it."""


@dataclass(frozen=True, slots=True)
class As:
    """The name of the field outside of the model."""

    name: str


class Alias:
    """Older or shorter names that callers may write."""

    def __init__(self, *names: str) -> None:
        self.names = names


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One declared field."""

    name: str
    """As callers write it and see it."""
    path: tuple[str, ...]
    """Where the model has it: one attribute, or several where a part of the model is flat."""
    type: Any
    kind: Kind
    optional: bool
    help: str
    aliases: tuple[str, ...]
    marks: frozenset[Mark]
    default: Any
    """`MISSING` when it must be given, or is a property."""
    given: bool
    """Whether it is given when the model is made; a property is not."""

    @property
    def required(self) -> bool:
        return self.given and self.default is MISSING

    @property
    def shown(self) -> Any:
        """The type of what is shown."""
        shown = self.kind.shown or _as_json(self.type)
        return shown | None if self.optional else shown

    def value_in(self, model: object) -> Any:
        for attribute in self.path:
            if model is None:
                break
            model = getattr(model, attribute)
        return model

    def schema(self) -> dict[str, Any]:
        """What a caller may write, with the default; null is as if it were not written."""
        schema = dict(self.kind.schema())
        if not self.required:
            schema = or_null(schema)
            schema["default"] = None if self.default is None else self.kind.show(self.default)
        return schema | ({"description": self.help} if self.help else {})


def _as_json(kind: Any) -> Any:
    """The type that a value of this type has as JSON."""
    origin, inner = get_origin(kind), [_as_json(one) for one in get_args(kind)]
    if origin in (Mapping, dict):
        return dict[str, inner[1]]  # type: ignore[valid-type]
    if origin in (tuple, list):
        return list[inner[0]]  # type: ignore[valid-type]
    if dataclasses.is_dataclass(kind) or kind in (Mapping, dict):
        return dict[str, Any]
    return Any if kind is Ellipsis else kind


@cache
def fields_of(model: type) -> Mapping[str, Field]:
    """The declared fields of a model by their names; of two with one name the later one counts."""
    return {field.name: field for field in _declared(model, ())}


def _declared(model: type, above: tuple[str, ...]) -> Iterator[Field]:
    hints = get_type_hints(model, include_extras=True)
    own = {field.name: field for field in dataclasses.fields(model)}
    for attribute, field in own.items():
        default = field.default if field.default_factory is MISSING else field.default_factory()
        found = _field((*above, attribute), hints[attribute], default, given=True)
        if Mark.FLAT in found.marks:
            for inner in _declared(found.type, found.path):
                marks = inner.marks | (found.marks - {Mark.FLAT})
                yield dataclasses.replace(inner, optional=inner.optional or found.optional, marks=marks)
        else:
            yield found
    for attribute, member in vars(model).items():
        if isinstance(member, property) and member.fget is not None:
            hint = get_type_hints(member.fget, include_extras=True).get("return")
            if get_origin(hint) is Annotated:
                yield _field((*above, attribute), hint, MISSING, given=False)


def _field(path: tuple[str, ...], hint: Any, default: Any, *, given: bool) -> Field:
    kind, extras = (get_args(hint)[0], hint.__metadata__) if get_origin(hint) is Annotated else (hint, ())
    optional = False
    if get_origin(kind) in (UnionType, Union):
        parts = [part for part in get_args(kind) if part is not NoneType]
        optional = len(parts) < len(get_args(kind))
        kind = parts[0] if len(parts) == 1 else Union[tuple(parts)]  # noqa: UP007
    return Field(
        name=_last(extras, As, As(path[-1])).name,
        path=path,
        type=kind,
        kind=_last(extras, Kind, JSON),
        optional=optional,
        help=_last(extras, str, ""),
        aliases=_last(extras, Alias, Alias()).names,
        marks=frozenset(extra for extra in extras if isinstance(extra, Mark)),
        default=default,
        given=given,
    )


def _last(extras: Collection[Any], kind: type[S], otherwise: S) -> S:
    found = [extra for extra in extras if isinstance(extra, kind)]
    return found[-1] if found else otherwise


@cache
def _own(model: type) -> tuple[tuple[str, Field, Any], ...]:
    """The fields to check when one is made: what is the default itself needs no look."""
    own = {field.path[0]: field for field in _declared(model, ()) if len(field.path) == 1 and field.given}
    return tuple(
        (attribute, field, field.default) for attribute, field in own.items() if field.kind is not JSON
    )


def conform(spec: object) -> None:
    """Read each field of a spec by its kind; call it in `__post_init__`, before checks across fields."""
    kind: type = spec.__class__
    for attribute, field, default in _own(kind):
        value = getattr(spec, attribute)
        if value is default or (value is None and field.optional):
            continue
        if type(value) is dict and not value and type(default) is dict:  # of a factory: never the same one
            continue
        read = field.kind.read(value, field.name)
        if read is not value:
            object.__setattr__(spec, attribute, read)


def shown(model: object, *, brief: bool = False, **more: Any) -> dict[str, Any]:
    """A model as the object that REST and the command line show; `brief` as in a list."""
    made: dict[str, Any] = {}
    kind: type = model.__class__
    for field, by in _to_show(kind, brief):
        value = field.value_in(model)
        made[field.name] = None if value is None else by(value)
    return made | more


@dataclass(frozen=True, slots=True)
class Inner(Kind):
    """A model within a model, or a sequence of them (`many`): each is shown by its own fields."""

    model: type
    called: str = ""
    """The name of its schema in OpenAPI; without one it is described as an object."""
    many: bool = False

    def show(self, value: Any) -> Any:
        return [shown(one) for one in value] if self.many else shown(value)


@cache
def _to_show(model: type, brief: bool) -> tuple[tuple[Field, Callable[[Any], Any]], ...]:
    hidden = {Mark.HIDDEN, Mark.DETAIL} if brief else {Mark.HIDDEN}
    return tuple(
        (field, field.kind.brief if brief else field.kind.show)
        for field in fields_of(model).values()
        if not field.marks & hidden
    )


@dataclass(frozen=True, kw_only=True)
class Form(Generic[S]):
    """What callers write to make one, as an object of fields."""

    called: str
    """With its article: "a batch"."""
    spec: type[S]
    example: str
    apart: tuple[str, ...] = ()
    """What may stand in a request beside the fields, and is read by itself."""

    @cached_property
    def fields(self) -> Mapping[str, Field]:
        return {
            name: field
            for name, field in fields_of(self.spec).items()  # type: ignore[arg-type]
            if field.given and Mark.INNER not in field.marks
        }

    @cached_property
    def names(self) -> Mapping[str, Field]:
        """The same, also by the other names that callers may write."""
        aliases = {alias: field for field in self.fields.values() for alias in field.aliases}
        return {**aliases, **self.fields}

    def read(self, given: Any) -> S:
        """The spec that a caller wrote; says which field is wrong."""
        return self.made(self.named(given))

    def named(self, given: Any, only: Collection[str] | None = None) -> dict[str, Any]:
        """What is given under the names of the fields; refuses what is no field, and what is given twice."""
        if not isinstance(given, Mapping):
            raise Invalid(f"{self.called} is an object such as {self.example}")
        found: dict[str, Any] = {}
        for written, value in given.items():
            field = self.names.get(written)
            if field is None or (only is not None and field.name not in only):
                raise self.unknown(written, only)
            if field.name in found:
                raise Invalid(f"{field.name} is given twice, under two names", field=field.name)
            found[field.name] = value
        return found

    def some(self, given: Any, only: Collection[str]) -> dict[str, Any]:
        """The values of some fields, to change them; null is as if a field were not given."""
        return {
            name: self._value(self.fields[name], value)
            for name, value in self.named(given, only).items()
            if value is not None
        }

    @staticmethod
    def _value(field: Field, value: Any) -> Any:
        return field.kind.read(field.kind.written(value, field.name), field.name)

    def unknown(self, written: object, only: Collection[str] | None = None, called: str = "") -> Invalid:
        name = str(written)[:60]
        if written in self.apart:
            return Invalid(
                f"{name} is given apart from the fields of {self.called}, not among them", field=name
            )
        names = [*self.names] if only is None else [*only]
        near = difflib.get_close_matches(name, names, 1)
        known = ", ".join((*(self.fields if only is None else only), *self.apart))
        hint = f"did you mean {near[0]!r}?" if near else f"it has {known}"
        return Invalid(f"{called or self.called} has no {name!r}; {hint}", field=name)

    def made(self, named: Mapping[str, Any]) -> S:
        """The spec of fields by their names; null is as if a field were not given."""
        values: dict[str, Any] = {}
        for name, field in self.fields.items():
            value = named.get(name)
            if value is None and field.required:
                raise Invalid(f"{name} is missing", field=name)
            if value is not None:
                *flat, attribute = field.path
                into = values.setdefault(flat[0], {}) if flat else values
                into[attribute] = field.kind.written(value, name)
        for attribute, model in self._flat.items():
            values[attribute] = model(**values.get(attribute, {}))
        return self.spec(**values)

    @cached_property
    def _flat(self) -> Mapping[str, Callable[..., Any]]:
        """The attributes that hold models of their own."""
        hints = get_type_hints(self.spec)
        return {field.path[0]: hints[field.path[0]] for field in self.fields.values() if len(field.path) == 2}

    def schema(
        self, says: str, *, only: Collection[str] | None = None, **more: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The schema of a body with these fields; or of a change of some of them, which stay without it."""
        fields = [field for field in self.fields.values() if only is None or field.name in only]
        members = {field.name: field.schema() for field in fields}
        if only is not None:
            members = {name: {**or_null(one), "default": None} for name, one in members.items()}
        schema: dict[str, Any] = {
            "type": "object",
            "description": says,
            "properties": {**members, **more},
            "required": [field.name for field in fields if field.required and only is None],
            "additionalProperties": False,
        }
        aliases = [alias for field in fields for alias in field.aliases]
        if aliases:
            older = ", ".join(f"`{alias}` for `{field.name}`" for field in fields for alias in field.aliases)
            schema["description"] = f"{says} Other names are understood too: {older}."
            # Apart from the properties: a body with both names is refused.
            schema["patternProperties"] = {f"^({'|'.join(aliases)})$": {}}
        return schema
