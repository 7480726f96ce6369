"""The table of actions: complete, without leftovers, and checked before a service is reached."""

from __future__ import annotations

import inspect

import pytest

from fusee.access.actions import ACTIONS, guarded
from fusee.access.principal import Principal, PrincipalKind, Role
from fusee.app.services import SERVED
from fusee.errors import Denied, Invalid

NOT_FOR_SURFACES = {
    "keys.any": "whether anybody can log in; the server asks it before there is a caller",
    "keys.any_ever": "the same",
    "keys.principal": "turns a key into a principal; the authenticator asks it",
    "keys.was_used": "the authenticator notes it",
}


def actions() -> set[str]:
    """Every public method of every service that a surface is given."""
    return {
        f"{noun}.{name}"
        for noun, service in SERVED.items()
        for name, _ in inspect.getmembers(service, callable)
        if not name.startswith("_")
    }


def test_every_method_of_a_service_is_in_the_table():
    undecided = actions() - ACTIONS.keys() - NOT_FOR_SURFACES.keys()
    assert not undecided, "say in fusee/access/actions.py who may do this"


def test_the_table_has_no_action_that_is_gone():
    attributes = {"tasks.now_us"}
    assert ACTIONS.keys() - actions() <= attributes
    assert not ACTIONS.keys() & NOT_FOR_SURFACES.keys()


def caller(role: Role):
    return Principal(PrincipalKind.API_KEY, "x", "default", {"default": role}).acting_in()


class Runs:
    def __init__(self) -> None:
        self.done: list[str] = []

    def list(self) -> None:
        self.done.append("list")

    def cancel(self) -> None:
        self.done.append("cancel")

    def unheard_of(self) -> None:
        self.done.append("unheard of")


def test_a_service_refuses_before_it_is_reached():
    runs = Runs()
    seen = guarded(runs, "runs", caller(Role.VIEWER))
    seen.list()
    with pytest.raises(Denied, match="needs the role operator; 'x' has viewer"):
        seen.cancel()
    guarded(runs, "runs", caller(Role.OPERATOR)).cancel()
    assert runs.done == ["list", "cancel"]


@pytest.mark.parametrize("role", list(Role))
def test_what_is_not_in_the_table_is_refused_to_everybody(role):
    runs = Runs()
    principal = Principal(PrincipalKind.API_KEY, "x", "default", {"*": Role.PLATFORM, "default": role})
    with pytest.raises(LookupError, match=r"runs\.unheard_of is not in the table"):
        guarded(runs, "runs", principal.acting_in()).unheard_of()
    assert runs.done == []


def test_a_principal_acts_only_where_it_has_a_role():
    principal = Principal(PrincipalKind.API_KEY, "x", "a", {"a": Role.ADMIN, "b": Role.VIEWER})
    assert principal.acting_in().role is Role.ADMIN
    assert principal.acting_in("b").role is Role.VIEWER
    for elsewhere in ("c", "*", ""):
        with pytest.raises(Denied, match="has no role in namespace"):
            principal.acting_in(elsewhere)
    everywhere = Principal(PrincipalKind.API_KEY, "y", "a", {"*": Role.PLATFORM, "a": Role.VIEWER})
    assert everywhere.acting_in("anything").role is Role.PLATFORM
    for impossible in ("*", "", "two words", "x" * 129):
        with pytest.raises(Invalid, match="namespace must be"):
            everywhere.acting_in(impossible)
