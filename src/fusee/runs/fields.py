"""A run as callers write it; its fields are declared in `fusee.engine.model.run`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusee.engine.model.run import RunSpec
from fusee.errors import Invalid
from fusee.values.fields import Form

__all__ = ["RUN", "spec_from"]

RUN = Form(called="a run", spec=RunSpec, example='{"handler": "send_mail", "payload": {"to": "a@b.example"}}')


def spec_from(fields: Mapping[str, Any]) -> RunSpec:
    """A `RunSpec` from what a caller wrote; says which field is wrong."""
    named = RUN.named(fields)
    executor = named.get("executor")
    if named.get("handler") is None:
        if executor is None or str(executor).lower() == "python":
            raise Invalid("handler is missing: name the handler that shall run", field="handler")
        named["handler"] = str(executor).lower()
    return RUN.made(named)
