"""An HTTP call written flat, as older requests have it; its fields become the http executor's payload."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from fusee.errors import Invalid
from fusee.values.durations import seconds_from
from fusee.values.merging import merged

__all__ = ["HTTP", "call_over", "object_from"]

MEMBERS: Mapping[str, str] = {
    "target_url": "url",
    "http_method": "method",
    "headers_json": "headers",
    "body_template": "body",
    "exec_type": "mode",
    "callback_timeout_sec": "callback_timeout",
    "callback_method": "callback_method",
}
"""The flat field, and the member of the payload that it stands for."""
HTTP = tuple(MEMBERS)


def call_over(payload: Mapping[str, Any], call: Mapping[str, Any]) -> dict[str, Any]:
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


def _seconds(value: Any, field: str) -> float:
    try:
        return seconds_from(value, field)
    except ValueError as error:
        raise Invalid(str(error), field=field) from None


def _upper(value: Any, _field: str) -> Any:
    return value.upper() if isinstance(value, str) else value


OF_CALLBACKS: Mapping[str, Callable[[Any, str], Any]] = {
    "callback_timeout_sec": _seconds,
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
