"""The HTTP request that a payload describes. Pure, so that the payload is also checked at creation."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import ThreadedResolver
from aiohttp.abc import AbstractResolver
from multidict import CIMultiDict
from yarl import URL

from fusee.engine.worker.callbacks import Callback, CallbackTerms
from fusee.engine.worker.executor import Job
from fusee.executors.http.guard import Guard, literal
from fusee.executors.http.template import in_json, in_url, names_for, plain, render, render_json
from fusee.executors.payload import check_fields

__all__ = ["HttpRequest", "Reach", "check_http", "prepare", "success_codes", "terms_of"]

CALLBACK_FIELDS = ("callback_hmac", "callback_method", "callback_timeout")
CALLBACK_METHODS = ("POST", "PUT", "PATCH")
"""The methods that a service may call back with: a callback has a body."""
CALLBACK_TIMEOUT = 3600.0
LONGEST_CALLBACK = 30 * 86400.0
_SAMPLE = Callback("https://fusee.example/api/v1/callbacks/1", "a-token")
FIELDS = tuple(sorted(("body", "headers", "method", "params", "success", "url", *CALLBACK_FIELDS, "mode")))
LOOK_UP = 1.0
"""Seconds for a name to be resolved; a name that takes longer is left to the run."""
METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_PARAM = re.compile(r"[A-Za-z0-9_.-]+")
# These say where a message ends: a payload that sets them could hide a second request in the first.
_FRAMING = {
    "connection", "content-length", "expect", "keep-alive", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """Everything needed to make the call."""

    method: str
    url: URL
    headers: CIMultiDict[str]
    body: bytes | None
    success: frozenset[int]


def check_http(payload: Mapping[str, Any]) -> None:
    """Refuse, with a ValueError that says why, a payload that could never be sent."""
    prepare(payload, None)


class Reach:
    """The guard of this process, asked when a call is submitted; a ValueError says what it would refuse.

    Tests replace `resolver`.
    """

    def __init__(self, allow_private: Iterable[str] = (), resolver: AbstractResolver | None = None) -> None:
        self.guard = Guard(allow_private)
        self.resolver = resolver

    def check(self, payload: Mapping[str, Any]) -> None:
        """Refuse a payload that could never be sent, or whose address the guard refuses as it is written."""
        self.check_address(str(prepare(payload, None).url))

    def check_address(self, address: str) -> None:
        """Refuse an address that the guard refuses as it is written."""
        self.guard.check_host(URL(address).raw_host or "")

    async def check_name(self, address: str) -> None:
        """Refuse an address whose host resolves, here and now, to what the guard refuses.

        A name that cannot be resolved passes: it may be known where the run executes.
        """
        host = URL(address).raw_host or ""
        try:
            async with asyncio.timeout(LOOK_UP):
                found = await (self.resolver or ThreadedResolver()).resolve(host, 0, socket.AF_UNSPEC)
        except (OSError, TimeoutError, UnicodeError):
            return
        self.guard.check_resolved(host, [one["host"] for one in found])

    async def check_payload_name(self, payload: Mapping[str, Any]) -> None:
        await self.check_name(str(prepare(payload, None).url))


def prepare(payload: Mapping[str, Any], job: Job | None, callback: Callback | None = None) -> HttpRequest:
    """Return the request of `payload` for `job` (None: a sample); a ValueError says what is wrong.

    An asynchronous call tells its service the address and the token of its callback.
    """
    check_fields(payload, "an HTTP payload", FIELDS, "url", '{"method": "GET", "url": "https://…"}')
    if terms_of(payload) is not None and job is None:
        callback = _SAMPLE
    names = names_for(job, _params(payload.get("params")), callback)
    headers = _headers(payload.get("headers"), names)
    body = _body(payload.get("body"), headers, names)
    if job is not None:
        headers.setdefault("Idempotency-Key", str(names["idempotency_key"]))
        headers["X-Fusee-Run-Id"] = str(job.run_id)
        headers["X-Fusee-Attempt"] = str(job.attempt)
        if callback is not None:
            headers["X-Fusee-Callback-Url"] = callback.url
            headers["X-Fusee-Callback-Token"] = callback.token
            headers["X-Fusee-Callback-Method"] = callback.method
        # Without compression, a response cannot unpack to a thousand times its size.
        headers.setdefault("Accept-Encoding", "identity")
    return HttpRequest(
        _method(payload.get("method"), body),
        _url(payload["url"], names),
        headers,
        body,
        success_codes(payload.get("success", "200-299")),
    )


def terms_of(payload: Mapping[str, Any]) -> CallbackTerms | None:
    """Return what an asynchronous call asks of its callback, None for any other call; raises a ValueError."""
    mode = payload.get("mode", "sync")
    if mode not in ("sync", "async"):
        raise ValueError(f'mode must be "sync" or "async", not {mode!r:.100}')
    if mode == "sync":
        for name in CALLBACK_FIELDS:
            if name in payload:
                raise ValueError(f'{name} goes with "mode": "async"; a sync call ends with its response')
        return None
    timeout, signed = payload.get("callback_timeout", CALLBACK_TIMEOUT), payload.get("callback_hmac", False)
    if (
        isinstance(timeout, bool)
        or not isinstance(timeout, int | float)
        or not 0 < timeout <= LONGEST_CALLBACK
    ):
        raise ValueError(
            f"callback_timeout must be seconds above 0, at most {LONGEST_CALLBACK:.0f} (30 days),"
            f" not {timeout!r:.100}"
        )
    if not isinstance(signed, bool):
        raise ValueError(f"callback_hmac must be true or false, not {signed!r:.100}")
    method = payload.get("callback_method", "POST")
    if not isinstance(method, str) or method.upper() not in CALLBACK_METHODS:
        raise ValueError(f"callback_method must be POST, PUT or PATCH, not {method!r:.100}")
    return CallbackTerms(float(timeout), signed, method.upper())


def success_codes(value: Any) -> frozenset[int]:
    """`"200-299"`, `204`, `"200-204,304"`, or a list of these."""
    if isinstance(value, list | tuple) and value:
        return frozenset[int]().union(*(success_codes(item) for item in value))
    if type(value) is int and 100 <= value <= 599:
        return frozenset((value,))
    if isinstance(value, str) and re.fullmatch(
        r"\s*\d{3}(\s*-\s*\d{3})?(\s*,\s*\d{3}(\s*-\s*\d{3})?)*\s*", value
    ):
        codes: set[int] = set()
        for part in value.split(","):
            low, _, high = part.partition("-")
            codes.update(range(int(low), int(high or low) + 1))
        if codes and min(codes) >= 100 and max(codes) <= 599:
            return frozenset(codes)
    raise ValueError(
        f'success must be statuses from 100 to 599, such as "200-299" or [200, "300-304"], not {value!r:.100}'
    )


def _params(value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError("params must be an object")
    for name in value:
        if not isinstance(name, str) or not _PARAM.fullmatch(name):
            raise ValueError(f"params has {name!r:.100}; a name is made of letters, digits, `_`, `.` and `-`")
    return value


def _method(value: Any, body: bytes | None) -> str:
    if value is None:
        return "GET" if body is None else "POST"
    if not isinstance(value, str) or value.upper() not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, not {value!r:.100}")
    return value.upper()


def _url(value: Any, names: Mapping[str, Any]) -> URL:
    if not isinstance(value, str):
        raise ValueError(f"url must be text, not {value!r:.100}")
    text = render(value, names, in_url)
    if re.search(r"[\x00-\x20\x7f\\]", text):
        raise ValueError(f"url holds a blank, a control character or a backslash: {text!r:.200}")
    try:
        url = URL(text)
    except ValueError as error:
        raise ValueError(f"url {text!r:.200} cannot be read: {error}") from None
    if url.scheme not in ("http", "https"):
        raise ValueError(f"url must start with http:// or https://, not {text!r:.200}")
    if "@" in re.split(r"[/?#]", text.partition("://")[2], maxsplit=1)[0]:
        raise ValueError("url holds a user or password, which would end up in logs: use a header")
    if not url.raw_host or "%" in url.raw_host.partition("%25")[0]:
        raise ValueError(f"url has no host: {text!r:.200}")
    literal(url.raw_host)
    return url.with_fragment(None)


def _headers(value: Any, names: Mapping[str, Any]) -> CIMultiDict[str]:
    headers: CIMultiDict[str] = CIMultiDict()
    if value is None:
        return headers
    if not isinstance(value, Mapping):
        raise ValueError("headers must be an object of texts")
    for name, text in value.items():
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise ValueError(f"headers has {name!r:.100}, which is no name of a header")
        if name.lower() in _FRAMING:
            raise ValueError(f"header {name} cannot be set: it is made by the connection itself")
        if not isinstance(text, str):
            raise ValueError(f"header {name} must be text, not {text!r:.100}")
        rendered = render(text, names, plain)
        if _CONTROL.search(rendered):
            raise ValueError(f"header {name} holds a line break or another control character")
        if name in headers:
            raise ValueError(f"header {name} is given twice")
        headers[name] = rendered.strip()
    return headers


def _body(value: Any, headers: CIMultiDict[str], names: Mapping[str, Any]) -> bytes | None:
    """Return the body; sets the content type that goes with it."""
    if value is None:
        return None
    try:
        if isinstance(value, str):
            kind = headers.setdefault("Content-Type", "text/plain; charset=utf-8")
            return render(value, names, in_json if _is_json(kind) else plain).encode()
        headers.setdefault("Content-Type", "application/json")
        return json.dumps(render_json(value, names), ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, RecursionError, UnicodeEncodeError) as error:
        raise ValueError(f"body is not JSON: {error}") from None


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")
