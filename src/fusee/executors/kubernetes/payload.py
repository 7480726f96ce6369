"""What a payload asks of a Kubernetes cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fusee.executors.payload import check_fields, read_environment

__all__ = ["ContainerSpec", "check_kubernetes", "read_payload"]

FIELDS = ("args", "command", "cpu", "env", "image", "memory")
OURS = "FUSEE_"
"""The prefix of the variables that the worker sets."""

_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,500}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_CPU = re.compile(r"[0-9]+(\.[0-9]+)?m?")
_MEMORY = re.compile(r"[0-9]+(\.[0-9]+)?([EPTGMk]i?|Ki)?")


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """One container, and what it may use."""

    image: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cpu: str | None = None
    memory: str | None = None


def check_kubernetes(payload: Mapping[str, Any]) -> None:
    """Refuse, with a ValueError that says why, a payload that no cluster could run."""
    read_payload(payload)


def read_payload(payload: Mapping[str, Any]) -> ContainerSpec:
    example = '{"image": "registry/job:1", "args": ["x"]}'
    check_fields(payload, "a kubernetes payload", FIELDS, "image", example)
    image = payload["image"]
    if not isinstance(image, str) or not _IMAGE.fullmatch(image):
        raise ValueError(f"image must name one, such as registry.example.com/job:1.2, not {image!r:.100}")
    return ContainerSpec(
        image,
        _texts(payload, "command"),
        _texts(payload, "args"),
        _env(payload.get("env")),
        _quantity(payload, "cpu", _CPU, '"500m" or "2"'),
        _quantity(payload, "memory", _MEMORY, '"256Mi" or "2Gi"'),
    )


def _texts(payload: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = payload.get(name)
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(part, str) for part in value):
        raise ValueError(f'{name} must be a list of texts, such as ["--day", "monday"]')
    return tuple(value)


def _env(value: object) -> dict[str, str]:
    env = read_environment(value, _VARIABLE.fullmatch)
    for name in env:
        if name.startswith(OURS):
            raise ValueError(f"env may not set {name!r:.100}: what begins with {OURS} is set by the worker")
    return env


def _quantity(payload: Mapping[str, Any], name: str, pattern: re.Pattern[str], example: str) -> str | None:
    value = payload.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(
            f"{name} must be an amount as Kubernetes writes it, such as {example}, not {value!r:.60}"
        )
    return value
