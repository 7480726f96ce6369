"""Defaults, then the file, then the environment, then overrides: the later wins, key by key."""

import os
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fusee.config.environment import read_environment
from fusee.config.files import Source, find_file, read_file
from fusee.config.keys import ALIASES, KeyPath, children, dotted, groups, keys
from fusee.config.problems import Place, Problems, nearest
from fusee.config.sections import Config

__all__ = ["Setting", "load", "settings"]


@dataclass(frozen=True)
class Setting:
    """A value for one key, or for one entry of a table such as worker.labels."""

    written: KeyPath
    value: Any
    source: Source

    def place(self, *below: str | int) -> Place:
        return self.source.place((*self.written, *below))


def settings(source: Source, problems: Problems) -> dict[KeyPath, Setting]:
    """Every setting of a source, by its key. A name that is no key becomes a problem."""
    found: dict[KeyPath, Setting] = {}
    _gather((), source.data, source, found, problems)
    return found


def _gather(
    group: KeyPath, data: Mapping[Any, Any], source: Source, found: dict[KeyPath, Setting], problems: Problems
) -> None:
    for name, value in data.items():
        written = (*group, str(name))
        path = ALIASES.get(written, written)
        place = source.place(written)
        if path in keys() and keys()[path].is_table:
            if isinstance(value, Mapping):
                for entry, text in value.items():
                    found[*path, str(entry)] = Setting((*written, str(entry)), text, source)
            else:
                problems.add(place, f"{dotted(written)} {place} must be a table of names and values")
        elif path in keys():
            if path in found:
                both = f"{dotted(found[path].written)} and {dotted(written)}"
                problems.add(place, f"{both} {place} set the same thing; keep {dotted(path)}")
            found[path] = Setting(written, value, source)
        elif written not in groups():
            problems.add(place, f"unknown key {dotted(written)} {place}; {_advise(written)}")
        elif isinstance(value, Mapping):
            _gather(written, value, source, found, problems)
        elif value is not None:
            # An empty `worker:` in YAML is a section with nothing in it.
            names = ", ".join(children(written))
            problems.add(place, f"{dotted(written)} {place} must be a section, with any of {names} inside")


def _advise(written: KeyPath) -> str:
    group, name = written[:-1], written[-1]
    same_name = [path for path in keys() if path[-1] == name]
    if len(same_name) == 1:
        return f"did you mean {dotted(same_name[0])}?"
    if near := nearest(name, children(group)):
        return f"did you mean {near}?"
    elsewhere = (path for path in (*keys(), *groups()) if len(path) == len(written) and path[:-1] != group)
    if near := nearest(dotted(written), map(dotted, elsewhere)):
        return f"did you mean {near}?"
    where = dotted(group) if group else "the top level"
    return f"the keys of {where} are {', '.join(children(group))}"


_WORDS = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "less_than_equal": "must be at most {le:g}",
    "literal_error": "must be {expected}",
    "string_too_long": "must be at most {max_length} characters long",
    "string_too_short": "must be at least {min_length} character long",
    "string_type": "must be text, in quotes",
    "too_short": "must have at least {min_length} in the list",
    "tuple_type": 'must be a list such as ["a", "b"]',
}


def load(
    path: Path | None = None,
    env: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Config:
    """Read the configuration; raises `ConfigError` with all errors.

    Without a path, the file is $FUSEE_CONFIG, else fusee.toml, fusee.yaml or fusee.yml in the working
    directory; without a file, the defaults.
    An override of None counts as not given, as a command-line flag does.
    """
    env = os.environ if env is None else env
    problems = Problems()
    merged: dict[KeyPath, Setting] = {}
    if file := find_file(path, env):
        merged |= settings(read_file(*file, problems), problems)
    merged |= settings(read_environment(env, problems), problems)
    merged |= settings(_explicit(overrides or {}), problems)
    config = _build(merged, problems)
    problems.raise_any()
    return config


def _explicit(overrides: Mapping[str, Any]) -> Source:
    return Source(_given(overrides), lambda key: Place("an override"))


def _given(overrides: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _given(value) if isinstance(value, Mapping) else value
        for name, value in overrides.items()
        if value is not None
    }


def _build(merged: Mapping[KeyPath, Setting], problems: Problems) -> Config:
    data: dict[str, Any] = {}
    for path, setting in merged.items():
        section = data
        for name in path[:-1]:
            section = section.setdefault(name, {})
        section[path[-1]] = setting.value
    try:
        return Config.model_validate(data)
    except ValidationError as wrong:
        for error in wrong.errors():
            # Its cause is another error of the same section, which is reported.
            if error["type"] != "default_factory_not_called":
                _explain(error, merged, problems)
        return Config()


def _explain(error: ErrorDetails, merged: Mapping[KeyPath, Setting], problems: Problems) -> None:
    path = next((path for path in merged if error["loc"][: len(path)] == path), None)
    if path is None:  # of a section: its settings do not fit together
        inside = next(path for path in merged if path[: len(error["loc"])] == error["loc"])
        place = merged[inside].place()
        said = error["msg"].removeprefix("Value error, ")
        problems.add(place, f"{dotted(tuple(map(str, error['loc'])))} {place} {said}")
        return
    setting, below = merged[path], error["loc"][len(path) :]
    key = next(key for key in keys().values() if path[: len(key.path)] == key.path)
    words = _WORDS.get(error["type"])
    said = words.format(**error.get("ctx", {})) if words else error["msg"].removeprefix("Value error, ")
    said, semicolon, advice = said.partition("; ")
    shown = "" if key.is_secret else f", not {_show(error['input'])}"
    name = dotted(setting.written) + "".join(f"[{step}]" for step in below)
    place = setting.place(*below)
    problems.add(place, f"{name} {place} {said}{shown}{semicolon}{advice}")


def _show(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case None:
            return "nothing"
    return reprlib.repr(value)
