"""Every key, read from the models. The loader, the environment and the reference share this list."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_origin

from pydantic.fields import FieldInfo

from fusee.config.sections import Config, Secret, Section

__all__ = ["ALIASES", "Key", "KeyPath", "children", "dotted", "groups", "keys", "variable"]

KeyPath = tuple[str, ...]

# Names of an earlier design that people have in their files; each means the key beside it.
ALIASES: Mapping[KeyPath, KeyPath] = {
    ("scheduler", "poll_interval"): ("dispatcher", "schedule_interval_seconds"),
    ("executor", "worker_pool_size"): ("worker", "max_concurrent_tasks"),
    ("executor", "request_timeout"): ("executors", "http", "timeout"),
}


@dataclass(frozen=True)
class Key:
    """One setting: where it stands, and the field that describes it."""

    path: KeyPath
    field: FieldInfo
    default: Any

    @property
    def is_table(self) -> bool:
        return get_origin(self.field.annotation) is Mapping

    @property
    def is_list(self) -> bool:
        return get_origin(self.field.annotation) is tuple

    @property
    def is_secret(self) -> bool:
        return any(isinstance(mark, Secret) for mark in self.field.metadata)


def dotted(path: KeyPath) -> str:
    return ".".join(path)


def variable(path: KeyPath) -> str:
    """The environment variable that sets this key."""
    return "FUSEE_" + "__".join(path).upper()


@cache
def keys() -> Mapping[KeyPath, Key]:
    """Every key by its path, in the order of declaration."""
    return {key.path: key for key in _walk(Config(), ())}


@cache
def groups() -> Mapping[KeyPath, FieldInfo | None]:
    """Every section by its path, with its field; None for the top level and the sections of aliases."""
    found: dict[KeyPath, FieldInfo | None] = {}
    for path in (*keys(), *ALIASES):
        for length in range(len(path)):
            found.setdefault(path[:length], _field(path[:length]))
    return found


def children(group: KeyPath) -> list[str]:
    """The names that may stand in a section."""
    depth = len(group)
    below = (path[depth] for path in (*keys(), *ALIASES) if len(path) > depth and path[:depth] == group)
    return list(dict.fromkeys(below))


def _walk(section: Section, prefix: KeyPath) -> list[Key]:
    found: list[Key] = []
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        path = (*prefix, name)
        found += _walk(value, path) if isinstance(value, Section) else [Key(path, field, value)]
    return found


def _field(group: KeyPath) -> FieldInfo | None:
    section: type[Section] = Config
    field = None
    for name in group:
        field = section.model_fields.get(name)
        if field is None or not isinstance(field.annotation, type):
            return None
        section = field.annotation
    return field
