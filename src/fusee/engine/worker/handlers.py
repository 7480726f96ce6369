"""Handlers: user code registered under a name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fusee.engine.model.retry import RetryPolicy
from fusee.engine.worker.context import RunContext
from fusee.errors import FuseeError, UnknownHandler
from fusee.values.names import RESERVED, check_name

__all__ = ["Handler", "Handlers"]

ISOLATIONS = ("async", "thread", "process")


@dataclass(frozen=True, slots=True)
class Handler:
    """A function and how to run it. `run_parameter` names the argument that takes the `RunContext`."""

    name: str
    function: Callable[..., Any]
    isolation: str
    timeout: float | None
    retry: RetryPolicy
    run_parameter: str | None
    builtin: bool = False
    hands_over: bool = False
    """Another attempt resumes where this one stopped, so a worker that drains stops it at once."""


class Handlers:
    """The registry of one app. Built-in handlers register as yours do, under names that are `RESERVED`."""

    def __init__(self) -> None:
        self._by_name: dict[str, Handler] = {}

    def register(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        timeout: float | None = None,
        retry: RetryPolicy | None = None,
        isolation: str | None = None,
        builtin: bool = False,
        reserved: bool = False,
        hands_over: bool = False,
    ) -> Handler:
        """Register a handler. `reserved`: the platform starts it for what the application declared (an
        operation, a business); `builtin`: it is the platform's own, and in every worker."""
        check_name(name, "handler")
        if name.startswith(RESERVED) and not (builtin or reserved):
            raise FuseeError(
                f"handler {name!r}: names that begin with {', '.join(f'`{one}`' for one in RESERVED)} are for"
                " handlers that the platform starts; give it another name"
            )
        if name in self._by_name:
            raise FuseeError(f"handler {name!r} is registered twice: give one of the two another name")
        is_async = inspect.iscoroutinefunction(function)
        isolation = isolation or ("async" if is_async else "thread")
        if isolation not in ISOLATIONS:
            raise FuseeError(
                f"handler {name!r}: isolation is one of {', '.join(ISOLATIONS)}, not {isolation!r}"
            )
        if isolation == "async" and not is_async:
            raise FuseeError(f"handler {name!r}: isolation='async' needs an `async def`")
        if isolation == "thread" and is_async:
            raise FuseeError(f"handler {name!r}: an `async def` runs as async, or with isolation='process'")
        handler = Handler(
            name,
            function,
            isolation,
            timeout,
            retry or RetryPolicy(),
            _run_parameter(function),
            builtin,
            hands_over,
        )
        self._by_name[name] = handler
        return handler

    def get(self, name: str) -> Handler:
        try:
            return self._by_name[name]
        except KeyError:
            known = ", ".join(self.names()) or "none"
            near = difflib.get_close_matches(name, self._by_name, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UnknownHandler(
                f"no handler {name!r} is registered{hint} Registered: {known}", field="handler"
            ) from None

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def all(self) -> tuple[Handler, ...]:
        return tuple(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def names(self) -> tuple[str, ...]:
        """Return the names of your handlers, without the built-in ones."""
        return tuple(sorted(handler.name for handler in self.all() if not handler.builtin))

    def served(self) -> tuple[str, ...]:
        """Return the names of all handlers that a worker with this registry can run."""
        return tuple(sorted(self._by_name))


def _run_parameter(function: Callable[..., Any]) -> str | None:
    """Return the name of the parameter annotated `RunContext`."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
    for name, parameter in parameters.items():
        if parameter.annotation is RunContext or parameter.annotation in ("RunContext", "fusee.RunContext"):
            return name
    return None
