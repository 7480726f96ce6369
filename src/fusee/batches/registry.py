"""Which operations this process knows; built-in packs register the way users do."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fusee.batches.model.spec import check_operation
from fusee.batches.operation import DEFAULT_RETRY, DEFAULT_TIMEOUT, Operation
from fusee.engine.model.retry import RetryPolicy
from fusee.errors import FuseeError, Invalid

__all__ = ["OperationRegistry", "Registered"]

METHODS = ("finished", "apply", "undo")


@dataclass(frozen=True, slots=True)
class Registered:
    """An operation with what is known of it."""

    target_type: str
    batch_type: str
    operation: Operation
    params: TypeAdapter[Any] | None
    timeout: float
    retry: RetryPolicy

    def check(self, after: Mapping[str, Any], before: Mapping[str, Any], where: str) -> None:
        """Refuse parameters that the operation could not use; says where and which."""
        if (mistake := self.mistake(after, before)) is not None:
            raise Invalid(f"{where}: {mistake}", field=mistake.partition(":")[0])

    def mistake(self, after: Mapping[str, Any], before: Mapping[str, Any]) -> str | None:
        """What is wrong with parameters that the operation could not use: `after.az: Field required`."""
        if self.params is None:
            return None
        for name, given in (("after", after), ("before", before)):
            if name == "before" and not given:
                continue
            try:
                self.params.validate_python(dict(given))
            except ValidationError as error:
                first = error.errors()[0]
                path = ".".join(str(part) for part in (name, *first["loc"]))
                told = first["msg"].removeprefix("Value error, ")  # pydantic's word for our own
                return f"{path}: {told}"
        return None


class OperationRegistry:
    """(target type, operation) → what does it."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Registered] = {}

    def register(
        self,
        target_type: str,
        batch_type: str,
        operation: Operation,
        *,
        params: Any = None,
        timeout: float = DEFAULT_TIMEOUT,
        retry: RetryPolicy = DEFAULT_RETRY,
    ) -> Registered:
        check_operation(target_type, batch_type)
        key = (target_type, batch_type)
        if key in self._known:
            raise FuseeError(
                f"operation {batch_type!r} of target type {target_type!r} is registered already; registered"
                f" are: {self.listed()}"
            )
        for method in METHODS:
            function = getattr(operation, method, None)
            if function is None or not inspect.iscoroutinefunction(function):
                raise FuseeError(
                    f"operation {batch_type!r} needs `async def {method}(self, target)`"
                    " (wrap blocking calls with asyncio.to_thread)"
                )
        adapter = None if params is None else TypeAdapter(params)
        registered = Registered(target_type, batch_type, operation, adapter, timeout, retry)
        self._known[key] = registered
        return registered

    def get(self, target_type: str, batch_type: str) -> Registered | None:
        return self._known.get((target_type, batch_type))

    def __iter__(self) -> Iterator[Registered]:
        return iter(self._known.values())

    def listed(self) -> str:
        """For errors: what there is."""
        return ", ".join(f"{kind}/{operation}" for kind, operation in sorted(self._known)) or "none"
