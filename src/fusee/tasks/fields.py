"""A task as callers write it: one flat object; older spellings are understood too.

The fields themselves are declared in `fusee.tasks.model.task` and `fusee.tasks.model.policy`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusee.batches.service.requests import check_request
from fusee.engine.model.retry import MOST_ATTEMPTS
from fusee.engine.model.run_fields import EXECUTORS
from fusee.errors import Invalid
from fusee.tasks.cron import Cron
from fusee.tasks.model.policy import Policy
from fusee.tasks.model.task import Task, TaskSpec
from fusee.values.durations import seconds_from
from fusee.values.fields import Form, shown
from fusee.values.merging import merged
from fusee.values.times import iso, show_times

__all__ = [
    "ALIASES",
    "HTTP",
    "POLICY",
    "SCHEDULES",
    "STATUSES",
    "TASK",
    "WAYS",
    "enabled_from",
    "fields_from",
    "object_from",
    "policy_from",
    "task_from",
    "task_shown",
    "words_of",
]

TASK = Form(
    called="a task",
    spec=TaskSpec,
    example='{"name": "nightly", "cron": "0 3 * * *", "handler": "tidy"}',
)
POLICY = Form(called="a policy", spec=Policy, example='{"overlap_action": "SKIP"}')
ALIASES: Mapping[str, str] = {
    "max_retries": "retry",
    "task_type": "executor",
    "shard_config": "shards",
    **{alias: field.name for field in TASK.fields.values() for alias in field.aliases},
}
"""Other names for the same thing, as they stand in older requests."""
STATUSES: Mapping[str, bool] = {"ENABLED": True, "ACTIVE": True, "DISABLED": False, "INACTIVE": False}
"""The statuses that a task can be made with, and whether it then fires."""
SCHEDULES = ("cron", "every", "at")
WAYS = ("handler", "workflow", "batch")
"""What runs, where it is Python: one of them."""
OBJECTS = ("payload", "retry", "alerts", "labels", "batch", "requires")
SHARDS = ("shard_total", "shard_count", "shards", "total", "count")


def task_from(given: Mapping[str, Any], base: TaskSpec | None = None) -> TaskSpec:
    """A `TaskSpec` of what a caller wrote, over `base` when that is changed; says which field is wrong."""
    if not isinstance(given, Mapping):
        raise Invalid(f"a task is an object such as {TASK.example}")
    fields = _named(given)
    call = {name: fields.pop(name) for name in HTTP if name in fields}
    fields = _made(fields, call) if base is None else _changed(fields, call, base)
    if fields.get("batch") is not None:
        fields["batch"] = object_from(fields["batch"], "batch")
        check_request(fields["batch"])
    if fields.get("name") is None:
        raise Invalid("name is missing: call the task something", field="name")
    return TASK.made(fields)


def policy_from(given: Mapping[str, Any], base: Policy | None = None) -> Policy:
    """A `Policy` of its fields as callers write them; over `base` when only some are given."""
    try:
        read = POLICY.some(given, POLICY.fields)
    except Invalid as error:
        if error.field in POLICY.names:
            raise
        hint = str(error).partition("; ")[2]
        raise Invalid(f"there is no policy {str(error.field)!r}; {hint}", field=error.field) from None
    changes = {POLICY.fields[name].path[-1]: value for name, value in read.items()}
    start = base or Policy()
    return Policy(**{name: changes.get(name, getattr(start, name)) for name in Policy.__slots__})


def task_shown(task: Task | TaskSpec, times: Sequence[int]) -> dict[str, Any]:
    """A task, or one as it would be, with its next fires and its cron expression in words."""
    spec = task.spec if isinstance(task, Task) else task
    words = None if spec.cron is None else words_of(Cron.parse(spec.cron))
    return shown(task, next_fires=show_times(times), description_words=words)


def words_of(cron: Cron) -> dict[str, str]:
    """A cron expression in words."""
    return {"en": cron.describe("en"), "zh": cron.describe("zh")}


def enabled_from(fields: dict[str, Any]) -> bool | None:
    """Take `enabled`, or the older `status`, out of what a caller wrote; None when neither is there."""
    enabled, status = fields.pop("enabled", None), fields.pop("status", None)
    if enabled is not None and not isinstance(enabled, bool):
        raise Invalid(f"enabled must be true or false, not {enabled!r:.60}", field="enabled")
    if status is None:
        return enabled
    if not isinstance(status, str) or status.upper() not in STATUSES:
        raise Invalid(f"status must be one of {', '.join(STATUSES)}, not {status!r:.60}", field="status")
    said = STATUSES[status.upper()]
    if enabled is not None and enabled is not said:
        raise Invalid("enabled and status say different things: give one of them", field="status")
    return said


def fields_from(spec: TaskSpec) -> dict[str, Any]:
    """The fields as a flat object, complete; `task_from` makes an equal spec of it."""
    fields = {name: value for name, value in shown(spec).items() if name in TASK.fields}
    return {**fields, "at": None if spec.at is None else iso(spec.at)}


def _named(given: Mapping[str, Any]) -> dict[str, Any]:
    """Known names only, the older ones translated."""
    fields: dict[str, Any] = {}
    for written, value in given.items():
        name, value = _translated(written, value) if isinstance(written, str) else (str(written), value)
        if name not in TASK.fields and name not in HTTP:
            raise TASK.unknown(name)
        if name in fields:
            raise Invalid(f"{name} is given twice, under two names", field=name)
        fields[name] = value
    return fields


def _translated(written: str, value: Any) -> tuple[str, Any]:
    """The field that is meant and its value."""
    if written == "task_type" and isinstance(value, str) and value.lower() not in EXECUTORS:
        return "handler", value  # a type of the caller's own is a handler here
    if written == "max_retries":
        return "retry", _retries(value)
    if written == "shard_config":
        return "shards", _shards(value)
    return ALIASES.get(written, written), value


def _retries(value: Any) -> Any:
    """Tries after the first: the rest of the retry policy stays as it is."""
    if value is None:
        return {"max_attempts": None}
    if type(value) is not int or not 0 <= value < MOST_ATTEMPTS:
        raise Invalid(
            f"max_retries must be a whole number from 0 to {MOST_ATTEMPTS - 1}, not {value!r:.60}",
            field="max_retries",
        )
    return {"max_attempts": value + 1}


def _shards(value: Any) -> Any:
    """The number of runs that a fire makes, alone or in an object."""
    if not isinstance(value, Mapping):
        return value
    named = [name for name in SHARDS if name in value]
    if len(named) != 1 or len(value) != 1:
        raise Invalid(
            f'shard_config must be a number, or an object such as {{"{SHARDS[0]}": 4}}', field="shard_config"
        )
    return value[named[0]]


def _made(fields: dict[str, Any], call: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a new task; an HTTP call written flat becomes executor and payload."""
    said = {name: value for name, value in call.items() if value is not None}
    if not said:
        return fields
    _refuse_two_ways(fields, said)
    http = "target_url" in said or str(fields.get("executor")).lower() == "http"
    payload = object_from(fields.get("payload") or {}, "payload") if http else {}
    return {**fields, "executor": "http", "payload": _call_over(payload, said)}


def _refuse_two_ways(fields: Mapping[str, Any], call: Mapping[str, Any]) -> None:
    if call.get("target_url") is not None and any(fields.get(way) for way in WAYS):
        raise Invalid(
            "target_url cannot stand beside handler, workflow or batch: give one", field="target_url"
        )


def _changed(given: dict[str, Any], call: Mapping[str, Any], base: TaskSpec) -> dict[str, Any]:
    """All fields of `base`, with those that are given over them: a JSON merge patch."""
    before = fields_from(base)
    if any(given.get(kind) is not None for kind in SCHEDULES):
        # A change of the schedule names the new one only: the old one is removed with it.
        before |= dict.fromkeys(SCHEDULES)
    named = [what for what in WAYS if given.get(what) is not None and given[what] != before[what]]
    if isinstance(given.get("executor"), str):
        given["executor"] = given["executor"].lower()
    if call.get("target_url") is not None:
        executor = "http"
    elif given.get("executor") is not None:
        executor = given["executor"]
    else:
        executor = "python" if named or "executor" in given else base.executor
    if executor != base.executor:
        before |= {"executor": executor, "payload": {}}  # a payload belongs to its executor
    if named or executor != base.executor:
        before |= dict.fromkeys(WAYS)
    for name in OBJECTS:
        if isinstance(given.get(name), Mapping):
            given[name] = merged(before[name], given[name])
    if call:
        _refuse_two_ways(given, call)
        payload = object_from(given.get("payload", before["payload"]) or {}, "payload")
        given |= {"executor": executor, "payload": _call_over(payload if executor == "http" else {}, call)}
    return {key: value for key, value in {**before, **given}.items() if value is not None}


# --- an HTTP call written flat, as older requests have it

MEMBERS: Mapping[str, str] = {
    "target_url": "url",
    "http_method": "method",
    "headers_json": "headers",
    "body_template": "body",
    "exec_type": "mode",
    "callback_timeout_sec": "callback_timeout",
    "callback_method": "callback_method",
}
"""The flat field, and the member of the http executor's payload that it stands for."""
HTTP = tuple(MEMBERS)


def _call_over(payload: Mapping[str, Any], call: Mapping[str, Any]) -> dict[str, Any]:
    """The payload with the flat fields of `call` over it; what `call` does not name stays as it is, and null
    takes a field back to its default."""
    after = dict(payload)
    if "exec_type" in call:
        _set_mode(after, call["exec_type"])
    for field in MEMBERS:
        if field not in call or field == "exec_type":
            continue
        member, value = MEMBERS[field], call[field]
        if field == "headers_json" and isinstance(value, str):
            value = object_from(value, field)  # the text of an object replaces all of them
        elif field == "headers_json" and value is not None:
            value = merged(after.get(member), object_from(value, field))
        if field in OF_CALLBACKS and value is not None:
            if after.get("mode") != "async" and "exec_type" in call:
                continue  # older requests send it with SYNC too, where nothing waits for a callback
            if after.get("mode") != "async":
                raise Invalid(f"{field} goes with exec_type ASYNC: a SYNC call has no callback", field=field)
            value = OF_CALLBACKS[field](value, field)
        if value is None or (field == "headers_json" and not value):
            after.pop(member, None)
        else:
            after[member] = value
    if "url" not in after:
        field = next((name for name, value in call.items() if value is not None), "target_url")
        if "target_url" in call:
            raise Invalid("target_url cannot be taken away: an HTTP call needs an address", field=field)
        raise Invalid(f"{field} goes with target_url: the address to call", field=field)
    return after


def object_from(value: Any, what: str) -> dict[str, Any]:
    """An object, or its JSON as text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise Invalid(f"{what} must be an object, or the JSON text of one", field=what) from None
    if not isinstance(value, Mapping):
        raise Invalid(f"{what} must be an object, not {value!r:.60}", field=what)
    return dict(value)


def _upper(value: Any, _field: str) -> Any:
    return value.upper() if isinstance(value, str) else value


OF_CALLBACKS: Mapping[str, Callable[[Any, str], Any]] = {
    "callback_timeout_sec": seconds_from,
    "callback_method": _upper,
}
"""What belongs to a callback, and how it is read."""


def _set_mode(payload: dict[str, Any], kind: Any) -> None:
    wanted = kind.upper() if isinstance(kind, str) else kind
    if wanted == "ASYNC":
        payload["mode"] = "async"
    elif wanted in (None, "SYNC"):
        for member in ("mode", "callback_timeout", "callback_method", "callback_hmac"):  # with async alone
            payload.pop(member, None)
    else:
        raise Invalid(f"exec_type must be SYNC or ASYNC, not {kind!r:.60}", field="exec_type")
