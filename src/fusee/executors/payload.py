"""Checks of payloads that executors share. A ValueError says what is wrong and what would be right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from fusee.engine.worker.executor import Job

__all__ = ["check_fields", "check_text", "matches", "read_environment", "run_environment"]


def check_fields(payload: object, what: str, fields: Sequence[str], required: str, example: str) -> None:
    """Refuse a payload that is no object, lacks the required field, or has an unknown one."""
    if not isinstance(payload, Mapping) or required not in payload:
        raise ValueError(f"{what} is an object such as {example}")
    if unknown := sorted(set(payload) - set(fields)):
        raise ValueError(f"{what} has no {unknown[0]!r}; it has {', '.join(fields)}")


def check_text(value: object, where: str) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{where} must be text, not {value!r:.100}")
    if "\x00" in value:
        raise ValueError(f"{where} holds a NUL character, which no program can be given")


def read_environment(value: object, is_name: Callable[[str], object]) -> dict[str, str]:
    """Return the environment variables of a payload's `env`; `is_name` accepts the names of variables."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError("env must be an object of texts")
    for name, text in value.items():
        if not isinstance(name, str) or not is_name(name):
            raise ValueError(f"env has {name!r:.100}, which is no name of a variable")
        check_text(text, f"env.{name}")
    return dict(value)


def run_environment(job: Job) -> dict[str, str]:
    """Return the variables that tell a program which run it serves, the same at every attempt."""
    return {
        "FUSEE_RUN_ID": str(job.run_id),
        "FUSEE_IDEMPOTENCY_KEY": f"fusee-run-{job.run_id}",
        "FUSEE_FIRE_TIME": job.fire_time or "",
        "FUSEE_SHARD_INDEX": str(job.shard_index),
        "FUSEE_SHARD_TOTAL": str(job.shard_total),
    }


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Return whether one of the patterns (`registry/jobs/*`) matches."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
