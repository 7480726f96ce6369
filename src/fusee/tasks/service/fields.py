"""A task as callers write it: one flat object; older spellings are understood too."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from fusee.batches.fields import BATCH, target_from
from fusee.engine.model.retry import RetryPolicy
from fusee.errors import Invalid
from fusee.tasks.model.policy import CatchUp, Concurrency, FailureAction, Overlap, Policy
from fusee.tasks.model.schedule import zone_named
from fusee.tasks.model.task import BATCH_HANDLER, WORKFLOW_HANDLER, Alerts, TaskSpec, TriggerRule
from fusee.tasks.service.http_fields import HTTP, call_over, object_from
from fusee.tasks.service.old_names import ALIASES, STATUSES, translated
from fusee.values.durations import seconds_from
from fusee.values.merging import merged
from fusee.values.sizes import bytes_from
from fusee.values.times import iso

__all__ = [
    "FIELDS",
    "POLICY_FIELDS",
    "enabled_from",
    "fields_from",
    "policy_fields",
    "policy_from",
    "task_from",
]

POLICY_FIELDS: Mapping[str, str] = {
    "overlap_action": "overlap",
    "max_concurrency": "max_concurrency",
    "concurrency_policy": "concurrency",
    "queue_depth": "queue_depth",
    "failure_action": "failure",
    "catch_up_mode": "catch_up",
    "catch_up_window": "catch_up_window",
    "catch_up_cap": "catch_up_cap",
    "grace": "grace",
    "jitter": "jitter",
    "rate": "rate",
    "burst": "burst",
}
"""The field of a request, and what the policy calls it."""

PLAIN = (
    "name", "description", "cron", "every", "at", "timezone", "executor", "handler", "payload", "workflow",
    "batch",
    "queue", "region", "priority", "timeout", "retry", "shards", "after", "trigger_rule", "alerts", "labels",
    "strategy", "cpu", "memory", "hash_key", "requires",
)  # fmt: skip
FIELDS = (*PLAIN, *POLICY_FIELDS)

_ENUMS: Mapping[str, Any] = {
    "overlap_action": Overlap,
    "concurrency_policy": Concurrency,
    "failure_action": FailureAction,
    "catch_up_mode": CatchUp,
}
BUILT_IN = {WORKFLOW_HANDLER: "workflow", BATCH_HANDLER: "batch"}
SCHEDULES = ("cron", "every", "at")
WAYS = ("handler", "workflow", "batch")
"""What runs, where it is Python: one of them."""
OBJECTS = ("payload", "retry", "alerts", "labels", "batch", "requires")
_DURATIONS = ("catch_up_window", "grace", "jitter")


def task_from(given: Mapping[str, Any], base: TaskSpec | None = None) -> TaskSpec:
    """A `TaskSpec` of what a caller wrote, over `base` when that is changed; says which field is wrong."""
    if not isinstance(given, Mapping):
        raise Invalid(
            'a task is an object such as {"name": "nightly", "cron": "0 3 * * *", "handler": "tidy"}'
        )
    fields = _flat(given)
    call = {name: fields.pop(name) for name in HTTP if name in fields}
    fields = _made(fields, call) if base is None else _changed(fields, call, base)
    field = "name"
    try:
        made: dict[str, Any] = {}
        for field, value in fields.items():
            if field in POLICY_FIELDS:
                continue
            if value is not None:
                made[field] = _READ.get(field, _as_is)(value, field)
        if isinstance(made.get("at"), str):
            field = "at"
            made["at"] = _instant(made["at"], made.get("timezone", "UTC"))
        if "name" not in made:
            field = "name"
            raise ValueError("name is missing: call the task something")
        field = ""
        return TaskSpec(**made, policy=policy_from({k: v for k, v in fields.items() if k in POLICY_FIELDS}))
    except (ValueError, TypeError) as error:
        raise Invalid(str(error), field=field or _field_in(str(error))) from None


def policy_from(given: Mapping[str, Any], base: Policy | None = None) -> Policy:
    """A `Policy` of its fields as callers write them; over `base` when only some are given."""
    values: dict[str, Any] = {}
    for written, value in given.items():
        field = ALIASES.get(written, written)
        if field not in POLICY_FIELDS:
            near = difflib.get_close_matches(field, POLICY_FIELDS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(POLICY_FIELDS)}"
            raise Invalid(f"there is no policy {field!r:.60}; {hint}", field=field[:60])
        if value is None:
            continue
        if field in _ENUMS:
            value = _one_of(value, field)
        elif field in _DURATIONS:
            value = seconds_from(value, field)
        elif field == "rate":
            value = _rate(value)
        elif type(value) is not int:
            raise Invalid(f"{field} must be a whole number, not {value!r:.60}", field=field)
        values[POLICY_FIELDS[field]] = value
    start = base or Policy()
    return Policy(**{name: values.get(name, getattr(start, name)) for name in Policy.__slots__})


def policy_fields(policy: Policy) -> dict[str, Any]:
    """The same under the names that callers write."""
    return {
        field: str(value) if field in _ENUMS else value
        for field, name in POLICY_FIELDS.items()
        for value in [getattr(policy, name)]
    }


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
    """The same as a flat object, complete; `task_from` makes an equal spec of it."""
    inner = "" if spec.handler in BUILT_IN else spec.handler
    return {
        "name": spec.name,
        "description": spec.description,
        "cron": spec.cron,
        "every": spec.every,
        "at": None if spec.at is None else iso(spec.at),
        "timezone": spec.timezone,
        "executor": spec.executor,
        "handler": inner or None,
        "workflow": spec.workflow,
        "batch": None if spec.batch is None else dict(spec.batch),
        "payload": dict(spec.payload),
        "queue": spec.queue,
        "region": spec.region,
        "priority": spec.priority,
        "timeout": spec.timeout,
        "retry": None if spec.retry is None else spec.retry.to_dict(),
        **policy_fields(spec.policy),
        "shards": spec.shards,
        "after": list(spec.after),
        "trigger_rule": str(spec.trigger_rule),
        "alerts": None
        if spec.alerts is None
        else {name: getattr(spec.alerts, name) for name in Alerts.__slots__},
        "labels": dict(spec.labels),
        "strategy": spec.strategy or None,
        "cpu": spec.cpu,
        "memory": spec.memory,
        "hash_key": spec.hash_key,
        "requires": dict(spec.requires),
    }


# -- reading


def _flat(given: Mapping[str, Any]) -> dict[str, Any]:
    """Known names only, the older ones translated; an HTTP call becomes executor and payload."""
    fields: dict[str, Any] = {}
    for written, value in given.items():
        name, value = translated(written, value) if isinstance(written, str) else (str(written), value)
        if name not in FIELDS and name not in HTTP:
            known = [*FIELDS, *HTTP, *ALIASES]
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(FIELDS)}"
            raise Invalid(f"a task has no {name[:60]!r}{hint}", field=name[:60])
        if name in fields:
            raise Invalid(f"{name} is given twice, under two names", field=name)
        fields[name] = value.lower() if name == "executor" and isinstance(value, str) else value
    return fields


def _made(fields: dict[str, Any], call: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a new task; an HTTP call written flat becomes executor and payload."""
    said = {name: value for name, value in call.items() if value is not None}
    if not said:
        return fields
    _refuse_two_ways(fields, said)
    http = "target_url" in said or fields.get("executor") == "http"
    payload = object_from(fields.get("payload") or {}, "payload") if http else {}
    return {**fields, "executor": "http", "payload": call_over(payload, said)}


def _refuse_two_ways(fields: Mapping[str, Any], call: Mapping[str, Any]) -> None:
    if call.get("target_url") is not None and any(fields.get(way) for way in WAYS):
        raise Invalid(
            "target_url cannot stand beside handler, workflow or batch: give one", field="target_url"
        )


def _changed(given: dict[str, Any], call: Mapping[str, Any], base: TaskSpec) -> dict[str, Any]:
    """All fields of `base`, with those that are given over them: a JSON merge patch."""
    before = fields_from(base)
    if any(given.get(kind) is not None for kind in SCHEDULES):
        # Whoever changes the schedule names the new one; the old one goes without being named.
        before |= dict.fromkeys(SCHEDULES)
    named = [what for what in WAYS if given.get(what) is not None and given[what] != before[what]]
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
        given |= {"executor": executor, "payload": call_over(payload if executor == "http" else {}, call)}
    return {key: value for key, value in {**before, **given}.items() if value is not None}


def _as_is(value: Any, _what: str) -> Any:
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} must be text, not {value!r:.60}")
    return value


def _whole(value: Any, what: str) -> int:
    if type(value) is not int:
        raise ValueError(f"{what} must be a whole number, not {value!r:.60}")
    return value


def _names(value: Any, what: str) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise ValueError(f"{what} must be a list of task names")
    return tuple(value)


def _labels(value: Any, what: str) -> dict[str, str]:
    labels = object_from(value, what)
    if len(labels) > 50 or not all(
        isinstance(v, str) and len(k) <= 128 and len(v) <= 256 for k, v in labels.items()
    ):
        raise ValueError(f"{what} must be at most 50 short texts by name")
    return labels


def _one_of(value: Any, field: str) -> Any:
    kind = _ENUMS[field]
    try:
        return kind(value.upper() if isinstance(value, str) else value)
    except ValueError:
        raise Invalid(f"{field} must be one of {', '.join(kind)}, not {value!r:.60}", field=field) from None


def _rate(value: Any) -> float:
    """Starts a second: a number, or `10/m`, `100/h`."""
    if isinstance(value, str):
        count, _, unit = value.partition("/")
        per = {"s": 1, "m": 60, "h": 3600, "d": 86400}.get(unit.strip() or "s")
        try:
            if per is not None:
                return float(count) / per
        except ValueError:
            pass
        raise ValueError(f"rate must be starts a second, or a text such as 10/m, not {value!r:.60}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"rate must be starts a second, or a text such as 10/m, not {value!r:.60}")
    return float(value)


def _instant(value: str, timezone: str) -> int:
    """A time as RFC 3339; without an offset it is meant in the task's time zone."""
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(f"at must be a time such as 2027-01-31T03:00:00Z, not {value!r:.60}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone_named(timezone))
    since = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    if not 0 <= since < _END:
        raise ValueError("at must not be before 1970 or after 9999")
    return since


_END = (datetime.max - datetime(1970, 1, 1)) // timedelta(microseconds=1)


def _retry(value: Any, what: str) -> RetryPolicy:
    if isinstance(value, RetryPolicy):
        return value
    given = {name: part for name, part in object_from(value, what).items() if part is not None}
    for name in ("base", "max"):
        if isinstance(given.get(name), str):
            given[name] = seconds_from(given[name], f"{what}.{name}")
    return RetryPolicy.from_dict(given)


def _alerts(value: Any, what: str) -> Alerts:
    given = {"webhook": value} if isinstance(value, str) else object_from(value, what)
    unknown = [key for key in given if key not in Alerts.__slots__]
    if unknown:
        raise ValueError(f"alerts has no {unknown[0]!r:.60}; it has {', '.join(Alerts.__slots__)}")
    webhook = given.get("webhook")
    if not isinstance(webhook, str) or not webhook.startswith(("http://", "https://")):
        raise ValueError("alerts.webhook must be the http or https address to post to")
    row = given.get("on_failures_in_a_row")
    if row is not None and (type(row) is not int or not 1 <= row <= 1000):
        raise ValueError(f"alerts.on_failures_in_a_row must be from 1 to 1000, not {row!r:.60}")
    late = given.get("on_lateness")
    on_failure = given.get("on_failure", row is None)
    if not isinstance(on_failure, bool):
        raise ValueError("alerts.on_failure must be true or false")
    return Alerts(
        webhook=webhook,
        on_failure=on_failure,
        on_failures_in_a_row=row,
        on_lateness=None if late is None else seconds_from(late, "alerts.on_lateness", least=0.1),
    )


def _rule(value: Any, what: str) -> TriggerRule:
    try:
        return TriggerRule(value)
    except ValueError:
        raise ValueError(f"{what} must be one of {', '.join(TriggerRule)}, not {value!r:.60}") from None


def _handler(value: Any, what: str) -> str:
    if value in BUILT_IN:
        raise ValueError(f"{what}: name what it starts as `{BUILT_IN[value]}`")
    return _text(value, what)


def _batch(value: Any, what: str) -> dict[str, Any]:
    """A batch with its targets, checked as if it were made now, and kept as it was written."""
    given = object_from(value, what)
    fields = {"batch_name": "task", **{key: item for key, item in given.items() if key != "targets"}}
    if "name" in fields:
        del fields["batch_name"]
    targets = given.get("targets")
    if targets is not None and (not isinstance(targets, list) or not targets):
        raise ValueError(f"{what}.targets must be a list of at least one target")
    try:
        BATCH.read(fields)
        for nr, target in enumerate(targets or (), 1):
            target_from(target, f"target {nr}")
    except Invalid as error:
        raise ValueError(f"{what}: {error}") from None
    return given


_READ: Mapping[str, Callable[[Any, str], Any]] = {
    "name": _text,
    "description": _text,
    "cron": _text,
    "every": lambda value, what: seconds_from(value, what, least=1.0),
    "at": _text,
    "timezone": _text,
    "executor": _text,
    "handler": _handler,
    "workflow": _text,
    "batch": _batch,
    "payload": object_from,
    "queue": _text,
    "region": _text,
    "priority": _whole,
    "timeout": seconds_from,
    "retry": _retry,
    "shards": _whole,
    "after": _names,
    "trigger_rule": _rule,
    "alerts": _alerts,
    "labels": _labels,
    "strategy": _text,
    "memory": bytes_from,
    "hash_key": _text,
    "requires": object_from,
}


def _field_in(message: str) -> str | None:
    """Errors of the model begin with the field."""
    word = message.split(" ", 1)[0].split(".")[0].rstrip(":")
    return word if word in FIELDS else None
