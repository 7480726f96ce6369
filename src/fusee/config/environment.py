"""Settings from environment variables: `FUSEE_WORKER__QUEUES=mail,billing`."""

import json
import re
from collections.abc import Mapping
from typing import Any

from fusee.config.files import Source
from fusee.config.keys import ALIASES, KeyPath, children, dotted, groups, keys, variable
from fusee.config.problems import Place, Problems, nearest

__all__ = ["read_environment"]

_PREFIX = "FUSEE_"
# These are not settings: the client's address and key, the tests' servers, the benchmarks' options.
_NOT_SETTINGS = re.compile(r"FUSEE_(?:CONFIG|API_KEY|URL|TEST_.*|BENCH_.*)")
# Kubernetes describes a Service named fusee (or fusee-api) to the pods beside it in variables of our prefix.
_SERVICE_LINK = re.compile(
    r"FUSEE_(?:[A-Z0-9]+_)*"
    r"(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_SERVICE_URL = re.compile(r"(?:tcp|udp|sctp)://")


def read_environment(env: Mapping[str, str], problems: Problems) -> Source:
    """The settings of the environment. An empty variable sets nothing."""
    data: dict[str, Any] = {}
    names: dict[KeyPath, str] = {}
    for name, text in sorted(env.items()):
        if not name.startswith(_PREFIX) or _is_not_ours(name, text):
            continue
        path = _path(name)
        if path is None:
            problems.add(Place(name), _advise(name))
        elif text:
            try:
                _put(data, path, _value(path, text))
            except ValueError as wrong:
                problems.add(Place(name), f"{dotted(path)} from {name} {wrong}")
            names[path] = name

    def place(key: tuple[str | int, ...]) -> Place:
        # A table's entry may come from its own variable or from the table's.
        named = (name for path, name in reversed(names.items()) if key[: len(path)] == path)
        return Place(max(named, key=len, default=variable(tuple(map(str, key)))))

    return Source(data, place)


def _is_not_ours(name: str, text: str) -> bool:
    if _NOT_SETTINGS.fullmatch(name) or _SERVICE_LINK.fullmatch(name):
        return True
    # FUSEE_API_PORT=8080 is a mistake of a person; FUSEE_API_PORT=tcp://10.0.0.1:8080 comes from Kubernetes.
    return name.endswith("_PORT") and bool(_SERVICE_URL.match(text))


def _path(name: str) -> KeyPath | None:
    parts = name.removeprefix(_PREFIX).split("__")
    path = tuple(part.lower() for part in parts)
    if path in keys() or path in ALIASES:
        return path
    # FUSEE_WORKER__LABELS__gpu: the name of an entry is kept as it was written.
    for length in range(1, len(path)):
        table = keys().get(path[:length])
        if table is not None and table.is_table:
            return (*path[:length], "__".join(parts[length:]))
    return None


def _value(path: KeyPath, text: str) -> Any:
    key = keys().get(path)
    if key is None or not (key.is_list or key.is_table):
        return text
    if text.lstrip().startswith(("[", "{")):
        return _json(text, list if key.is_list else dict)
    items = [item.strip() for item in text.split(",") if item.strip()]
    if key.is_list:
        return items
    if any("=" not in item for item in items):
        raise ValueError("must be written name=value,name=value or as a JSON object")
    return dict(item.split("=", 1) for item in items)


def _json(text: str, wanted: type) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        # Without the parser's own text: it may quote what must not be shown.
        raise ValueError("must be valid JSON when it begins with [ or {") from None
    if not isinstance(value, wanted):
        raise ValueError("must be a JSON array" if wanted is list else "must be a JSON object")
    return value


def _put(data: dict[str, Any], path: KeyPath, value: Any) -> None:
    for name in path[:-1]:
        data = data.setdefault(name, {})
    if isinstance(value, dict) and isinstance(data.get(path[-1]), dict):
        data[path[-1]] |= value
    else:
        data[path[-1]] = value


def _advise(name: str) -> str:
    path = tuple(part.lower() for part in name.removeprefix(_PREFIX).split("__"))
    if path in groups():
        example = variable((*path, children(path)[0]))
        return f"{name} names a whole section; set its keys one by one, such as {example}"
    known = {variable(key).removeprefix(_PREFIX): variable(key) for key in keys()}
    near = nearest(name.removeprefix(_PREFIX).upper(), known)
    hint = (
        f"did you mean {known[near]}?" if near else "unset it, or see the reference for the names there are"
    )
    return f"unknown environment variable {name}; {hint}"
