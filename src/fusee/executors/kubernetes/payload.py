"""What a run's payload asks a cluster for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

__all__ = ["Wanted", "allowed_image", "check_kubernetes", "read_payload"]

FIELDS = ("args", "command", "cpu", "env", "image", "memory")
OURS = "FUSEE_"
"""Variables that begin so are set by us."""

_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,500}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_CPU = re.compile(r"[0-9]+(\.[0-9]+)?m?")
_MEMORY = re.compile(r"[0-9]+(\.[0-9]+)?([EPTGMk]i?|Ki)?")


@dataclass(frozen=True, slots=True)
class Wanted:
    """One container, and what it may use."""

    image: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    cpu: str | None = None
    memory: str | None = None


def check_kubernetes(payload: Mapping[str, Any]) -> None:
    """Refuse, with a ValueError that says why, a payload that no cluster could run."""
    read_payload(payload)


def read_payload(payload: Mapping[str, Any]) -> Wanted:
    if not isinstance(payload, Mapping) or "image" not in payload:
        raise ValueError(
            'a kubernetes payload is an object such as {"image": "registry/job:1", "args": ["x"]}'
        )
    if unknown := sorted(set(payload) - set(FIELDS)):
        raise ValueError(f"a kubernetes payload has no {unknown[0]!r}; it has {', '.join(FIELDS)}")
    image = payload["image"]
    if not isinstance(image, str) or not _IMAGE.fullmatch(image):
        raise ValueError(f"image must name one, such as registry.example.com/job:1.2, not {image!r:.100}")
    return Wanted(
        image,
        _texts(payload, "command"),
        _texts(payload, "args"),
        _env(payload.get("env")),
        _quantity(payload, "cpu", _CPU, '"500m" or "2"'),
        _quantity(payload, "memory", _MEMORY, '"256Mi" or "2Gi"'),
    )


def allowed_image(image: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns (`registry/jobs/*`) has it; without any pattern every image is allowed."""
    return not patterns or any(fnmatchcase(image, pattern) for pattern in patterns)


def _texts(payload: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = payload.get(name)
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(part, str) for part in value):
        raise ValueError(f'{name} must be a list of texts, such as ["--day", "monday"]')
    return tuple(value)


def _env(value: object) -> tuple[tuple[str, str], ...]:
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise ValueError("env must be an object of texts")
    for name, text in value.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise ValueError(f"env has {name!r:.100}, which is no name of a variable")
        if name.startswith(OURS):
            raise ValueError(f"env may not set {name!r:.100}: what begins with {OURS} is set by the worker")
        if not isinstance(text, str):
            raise ValueError(f"env.{name} must be text, not {text!r:.100}")
    return tuple(value.items())


def _quantity(payload: Mapping[str, Any], name: str, pattern: re.Pattern[str], example: str) -> str | None:
    value = payload.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(
            f"{name} must be an amount as Kubernetes writes it, such as {example}, not {value!r:.60}"
        )
    return value
