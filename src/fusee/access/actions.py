"""Every action of every service, with the least role that may do it.

Surfaces never hold a service itself: they hold `Guarded` views of it, which look the action up here before
each call. A method that is not in the table cannot be called through a surface at all, so a new one is
refused to everybody until somebody decides who may use it.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

from fusee.access.principal import Caller, Role

__all__ = ["ACTIONS", "Guarded", "guarded"]

_LOOK = {
    "runs": "get list peek wait ended",
    "workers": "get list wait_until_down",
    "queues": "get list",
    "tasks": "get list fires explain next upcoming preview simulate describe plain now_us",
    "templates": "get list expanded",
    "workflows": "get list graph run runs wait",
    "batches": "get list tasks recorded_plan recount",
    "bulk_jobs": "get list loads logs quarantine quarantined segments",
    "businesses": "get list",
}
_OPERATE = {
    "runs": "submit submit_each submit_within cancel retry check",
    "workers": "drain",
    "queues": "change limit pause place",
    "tasks": "create create_once replace change delete steer trigger restart backfill clear_queue checked"
    " check_runnable",
    "templates": "create create_once replace delete apply",
    "workflows": "create create_once replace delete apply start cancel rerun",
    "batches": "create plan apply cancel retry roll_back wake upload_ended",
    "bulk_jobs": "create delete adjust extend log rerun_quarantine resume set_data start stop undo",
    "businesses": "register register_once update delete",
}
_ADMINISTER = {"keys": "create list revoke rotate"}


def _table() -> dict[str, Role]:
    parts = ((_LOOK, Role.VIEWER), (_OPERATE, Role.OPERATOR), (_ADMINISTER, Role.ADMIN))
    return {
        f"{noun}.{action}": role
        for nouns, role in parts
        for noun, actions in nouns.items()
        for action in actions.split()
    }


ACTIONS = _table()
"""`noun.method` → the least role."""

Service = TypeVar("Service")


class Guarded:
    """A service as one caller may use it."""

    __slots__ = ("_caller", "_noun", "_service")

    def __init__(self, service: object, noun: str, caller: Caller) -> None:
        self._service = service
        self._noun = noun
        self._caller = caller

    def __getattr__(self, name: str) -> Any:
        action = f"{self._noun}.{name}"
        least = ACTIONS.get(action)
        if least is None:
            raise LookupError(f"{action} is not in the table of actions: fusee/access/actions.py")
        self._caller.needs(least)
        return getattr(self._service, name)


def guarded(service: Service, noun: str, caller: Caller) -> Service:
    """The same service, for a surface: each call is checked against the table of actions."""
    return cast(Service, Guarded(service, noun, caller))
