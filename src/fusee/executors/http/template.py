"""Replaces names in double braces by plain text. Not a template language, on purpose."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from fusee.engine.worker.callbacks import Callback
from fusee.engine.worker.executor import Job

__all__ = ["CALLBACK_NAMES", "NAMES", "in_json", "in_url", "names_for", "plain", "render", "render_json"]

NAMES = ("run_id", "attempt", "idempotency_key", "fire_time", "shard_index", "shard_total")
"""There is also `param.x` for every x of the payload's `params`."""
CALLBACK_NAMES = ("callback_url", "callback_token", "callback_method")
"""Names that only an asynchronous call has."""

# Spaces are part of the name until it is read: separate loops over them would take cubic time.
_PLACE = re.compile(r"\{\{([^{}]*)\}\}")


def names_for(job: Job | None, params: Mapping[str, Any], callback: Callback | None = None) -> dict[str, Any]:
    """Return every name and its value; without a job, sample values."""
    names: dict[str, Any] = {
        "run_id": job.run_id if job else 1,
        "attempt": job.attempt if job else 1,
        "idempotency_key": f"fusee-run-{job.run_id if job else 1}",
        "fire_time": (job.fire_time or "") if job else "",
        "shard_index": job.shard_index if job else 0,
        "shard_total": job.shard_total if job else 1,
    }
    if callback is not None:
        names |= dict(zip(CALLBACK_NAMES, (callback.url, callback.token, callback.method), strict=True))
    return names | {f"param.{name}": value for name, value in params.items()}


def render(text: str, names: Mapping[str, Any], escape: Callable[[Any], str]) -> str:
    """Replace each `{{name}}` once; names inside values are not replaced."""

    def replace(found: re.Match[str]) -> str:
        name = found[1].strip()
        if name not in names:
            raise ValueError(f"{{{{{name[:60]}}}}} is not a name here; there are {', '.join(names)}")
        return escape(names[name])

    return _PLACE.sub(replace, text)


def render_json(value: Any, names: Mapping[str, Any]) -> Any:
    """Replace names in every text of a JSON value, also in keys; numbers and structure stay as they are."""
    if isinstance(value, str):
        return render(value, names, plain)
    if isinstance(value, Mapping):
        return {render(str(key), names, plain): render_json(item, names) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [render_json(item, names) for item in value]
    return value


def plain(value: Any) -> str:
    """Return text as it is, an empty text for null, everything else as JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def in_json(value: Any) -> str:
    """Return a value for use inside JSON text: text is escaped for use between quotes, the rest is JSON."""
    if isinstance(value, str):
        return json.dumps(value)[1:-1]
    return json.dumps(value, separators=(",", ":"))


def in_url(value: Any) -> str:
    """Return one piece of a URL, which can neither end it nor start another."""
    text = plain(value)
    if text in (".", ".."):
        raise ValueError(f"{text!r} cannot be put into a URL: it would change the path around it")
    return quote(text, safe="")
