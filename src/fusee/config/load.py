"""Defaults, then the file, then the environment, then overrides: the later wins, key by key."""

import os
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fusee.config.environment import read_environment
from fusee.config.files import Source, find_file, read_file
from fusee.config.keys import KeyPath, dotted, keys
from fusee.config.problems import Place, Problems
from fusee.config.settings import Setting, settings
from fusee.config.whole import Config

__all__ = ["load"]

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
    """Read the configuration; raises `ConfigError` with all that is wrong.

    Without a path it is $FUSEE_CONFIG, else fusee.toml, fusee.yaml or fusee.yml here, else the defaults.
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
            # Its cause is another error of the same section, which is told.
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
