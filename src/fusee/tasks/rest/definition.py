"""A task as callers send it, described: the operations read it, so that every surface refuses the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from fusee.engine.model.retry import RETRY
from fusee.engine.model.run_fields import EXECUTORS
from fusee.engine.model.strategy import Strategy
from fusee.surfaces.rest.asking import Body, body_of
from fusee.tasks.model.policy import CatchUp, Concurrency, FailureAction, Overlap
from fusee.tasks.model.task import MOST_SHARDS, MOST_UPSTREAMS, TaskSpec, TriggerRule
from fusee.tasks.service.fields import fields_from
from fusee.tasks.service.old_names import ALIASES, STATUSES
from fusee.values.names import NAME

__all__ = ["TASK_BODIES", "task_body"]


def _text(says: str, **more: Any) -> dict[str, Any]:
    return {"type": ["string", "null"], "description": says, **more}


def _whole(says: str, least: int, most: int) -> dict[str, Any]:
    return {"type": ["integer", "null"], "minimum": least, "maximum": most, "description": says}


def _seconds(says: str, least: float = 0) -> dict[str, Any]:
    kinds = [{"type": "number", "minimum": least}, {"type": "string"}, {"type": "null"}]
    return {"anyOf": kinds, "description": says, "examples": [90, "90s", "1h30m"]}


def _one_of(kind: type[StrEnum], says: str) -> dict[str, Any]:
    return {"type": ["string", "null"], "description": f"{says}: {', '.join(kind)}.", "examples": list(kind)}


def _object(says: str, **more: Any) -> dict[str, Any]:
    kinds = [{"type": "object", **more}, {"type": "string"}, {"type": "null"}]
    return {"anyOf": kinds, "description": f"{says}; as an object, or as the JSON text of one."}


_NAME: dict[str, Any] = {"type": "string", "pattern": f"^{NAME}$"}

_ALERTS: dict[str, Any] = {
    "webhook": {"type": "string", "pattern": "^https?://"},
    "on_failure": {"type": "boolean"},
    "on_failures_in_a_row": _whole("Told at the n-th failure in a row.", 1, 1000),
    "on_lateness": _seconds("A fire decided later than this is told of.", 0.1),
}

PROPERTIES: Mapping[str, dict[str, Any]] = {
    "name": {**_NAME, "description": "Unique in its namespace; it stays.", "examples": ["nightly"]},
    "description": _text("For people.", maxLength=512),
    "cron": _text("Five fields, six with seconds in front, or `@daily` and its like."),
    "every": _seconds("An interval, in the place of `cron`.", 1),
    "at": _text("Once, in the place of `cron`: RFC 3339; without an offset, in `timezone`."),
    "timezone": _text("A zone of the IANA database.", examples=["Europe/Berlin"]),
    "executor": _text(f"One of {', '.join(EXECUTORS)}."),
    "handler": _text("The handler that runs; http and shell need none.", examples=["greet"]),
    "payload": _object("The handler's arguments by name"),
    "workflow": _text("A workflow to start, in the place of `handler`."),
    "batch": _object("A batch to start, in the place of `handler`: its fields and its `targets`"),
    "queue": _text("The queue of its runs."),
    "region": _text("The region of its runs."),
    "priority": _whole("The highest goes first.", -1000, 1000),
    "timeout": _seconds("For one attempt."),
    "retry": {
        "anyOf": [RETRY.schema(), {"type": "string"}, {"type": "null"}],
        "description": "When an attempt did not succeed.",
    },
    "overlap_action": _one_of(Overlap, "When an earlier fire has not ended"),
    "max_concurrency": _whole("Fires under way at once, over all workers; 0 is no cap.", 0, 10_000),
    "concurrency_policy": _one_of(Concurrency, "When that many are under way"),
    "queue_depth": _whole("How many may stand in line.", 0, 100_000),
    "failure_action": _one_of(FailureAction, "When the last fire failed"),
    "catch_up_mode": _one_of(CatchUp, "When fires were due while nothing could fire them"),
    "catch_up_window": _seconds("What was due longer ago is missed."),
    "catch_up_cap": _whole("FULL makes up for so many at most.", 1, 10_000),
    "grace": _seconds(
        "Decided this late, a fire still counts as on time; never longer than until the next one is due."
    ),
    "jitter": _seconds("Start up to so much later, by a fixed share for each fire."),
    "rate": {
        "anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}, {"type": "null"}],
        "description": "Starts a second at most, or as text.",
        "examples": [0.5, "10/m"],
    },
    "burst": _whole("Starts at once, with a rate.", 1, 10_000),
    "shards": _whole("Runs that one fire makes.", 1, MOST_SHARDS),
    "after": {
        "anyOf": [
            {"type": "array", "items": _NAME, "uniqueItems": True, "maxItems": MOST_UPSTREAMS},
            {"type": "string"},
            {"type": "null"},
        ],
        "description": "Tasks that it waits for.",
    },
    "trigger_rule": _one_of(TriggerRule, "When a run that waits for others may start"),
    "alerts": {
        "anyOf": [
            {"type": "object", "properties": _ALERTS, "required": ["webhook"], "additionalProperties": False},
            {"type": "string"},
            {"type": "null"},
        ],
        "description": "Where to tell, and what of; text is the webhook.",
    },
    "strategy": _one_of(Strategy, "How its runs find their worker; without one, as their queue says"),
    "cpu": {"type": ["number", "null"], "exclusiveMinimum": 0, "description": "Cores its worker must have."},
    "memory": {
        "anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}, {"type": "null"}],
        "description": "Memory that its worker must have.",
        "examples": [1048576, "512MB", "8GiB"],
    },
    "hash_key": _text("What consistent hashing goes by; without one, the task and shard."),
    "requires": _object("Labels that its worker must have", additionalProperties={"type": "string"}),
    "labels": _object("For people and programs", additionalProperties={"type": "string", "maxLength": 256}),
}

CALL: Mapping[str, dict[str, Any]] = {
    "target_url": _text("An address to call: executor `http`, written flat."),
    "http_method": _text("With `target_url`."),
    "headers_json": _object("With `target_url`"),
    "body_template": _text("With `target_url`; `{{run_id}}` and its like are filled in."),
    "exec_type": _text("With `target_url`: SYNC, or ASYNC, which waits for a callback."),
    "callback_method": _text("With ASYNC: POST, PUT or PATCH, for the callback.", examples=["POST"]),
    "callback_timeout_sec": _seconds("With ASYNC: how long the callback may take."),
}

REQUIRED = ("name", "handler")

FROM_TEMPLATE: Mapping[str, dict[str, Any]] = {
    "template": _text("A template to make it from; the other fields go over the template's."),
    "with": _object("With `template`: a value for each of its parameters that has no default"),
}
SWITCH: Mapping[str, dict[str, Any]] = {
    "enabled": {"type": ["boolean", "null"], "description": "false: it fires when it has been enabled."},
    "status": _text("The older spelling of `enabled`.", examples=list(STATUSES)),
}
VERSION: Mapping[str, dict[str, Any]] = {
    "version": {
        "type": ["integer", "null"],
        "minimum": 1,
        "description": "The version that you saw; the change is refused when it is stale.",
    }
}


def _properties(more: Mapping[str, Any]) -> dict[str, Any]:
    """With their defaults; those of the server's own model, so that they cannot differ."""
    defaults = fields_from(TaskSpec(name="example", handler="example"))
    return {
        name: schema if name in REQUIRED else {**schema, "default": defaults.get(name)}
        for name, schema in {**PROPERTIES, **CALL, **more}.items()
    }


def _body(says: str, more: Mapping[str, Any], required: Sequence[str] = ()) -> dict[str, Any]:
    older = ", ".join(f"`{alias}` for `{name}`" for alias, name in ALIASES.items())
    return {
        "type": "object",
        "description": f"{says} Older names are understood too: {older}.",
        "properties": _properties(more),
        # Apart from the properties: who writes both names is refused.
        "patternProperties": {f"^({'|'.join(ALIASES)})$": {}},
        "required": list(required),
        "additionalProperties": False,
    }


TASK_BODIES: Mapping[str, dict[str, Any]] = {
    "TaskIn": _body("A task to make.", {**FROM_TEMPLATE, **SWITCH}, required=["name"]),
    "TaskReplaceIn": _body(
        "A task as it shall be; what is left out is its default. What the server adds to a task is ignored,"
        " so that an answer can be edited and sent back.",
        {**FROM_TEMPLATE, **VERSION},
    ),
    "TaskChangeIn": _body("The fields to change; null takes one back to its default.", VERSION),
}


def task_body(name: str, example: Mapping[str, Any]) -> dict[str, Any]:
    """The description of a body that is one of these."""
    return body_of(Body(name, TASK_BODIES[name]), example=example)
