"""Who acts, and what they may do: pure facts without a store or a surface."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from fusee.errors import Denied, Invalid
from fusee.values.names import check_name

__all__ = ["EVERYWHERE", "Caller", "Principal", "PrincipalKind", "Role", "grants_from"]

EVERYWHERE = "*"
"""Stands for all namespaces in the grants of a principal with the role platform."""


class Role(StrEnum):
    """What a principal may do in a namespace. Each of viewer, operator and admin includes those before it."""

    VIEWER = "viewer"
    """Looks at everything and changes nothing."""
    OPERATOR = "operator"
    """Also creates, changes, starts, cancels and retries work."""
    ADMIN = "admin"
    """Also manages the API keys of the namespace."""
    PLATFORM = "platform"
    """An admin of every namespace; it is granted for all of them at once."""

    def includes(self, other: Role) -> bool:
        return _RANKS[self] >= _RANKS[other]


_RANKS = {role: rank for rank, role in enumerate(Role)}
GRANTED = (Role.VIEWER, Role.OPERATOR, Role.ADMIN)
"""The roles that a grant for one namespace can have."""


class PrincipalKind(StrEnum):
    """How a principal proved who it is."""

    API_KEY = "api key"
    """By a key of this database, or by one whose digest is in the configuration."""
    JWT = "token"
    """By a JSON Web Token of the configured identity provider."""
    LOCAL = "local"
    """By being on this machine while no key has ever been created."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Someone or something that acts, with its role in each namespace."""

    kind: PrincipalKind
    name: str
    home: str
    """The namespace that it acts in when it asks for no other."""
    grants: Mapping[str, Role]

    def role_in(self, namespace: str) -> Role | None:
        if self.grants.get(EVERYWHERE) is Role.PLATFORM:
            return Role.PLATFORM
        return self.grants.get(namespace)

    def acting_in(self, namespace: str | None = None) -> Caller:
        """This principal in its home, or in the namespace that it asks for.

        The error is the same whether that namespace exists or not."""
        wanted = self.home if namespace is None else namespace
        role = self.role_in(wanted)
        if role is None:
            raise Denied(
                f"{self.kind} {self.name!r} has no role in namespace {wanted!r:.80}: ask an admin of it",
                known=True,
            )
        # A role in every namespace is none in names that no namespace can have, such as `*`.
        return Caller(self, check_name(wanted, "namespace"), role)


@dataclass(frozen=True, slots=True)
class Caller:
    """A principal that acts in one namespace."""

    principal: Principal
    namespace: str
    role: Role

    @property
    def name(self) -> str:
        return self.principal.name

    def needs(self, role: Role) -> None:
        """Raise `Denied` unless the caller has at least this role."""
        if not self.role.includes(role):
            raise Denied(f"this needs the role {role}; {self.name!r} has {self.role}", known=True)


def grants_from(given: Mapping[str, str]) -> dict[str, Role]:
    """Grants as people write them, `{namespace: role}`, checked."""
    grants: dict[str, Role] = {}
    for namespace, role in given.items():
        if namespace == EVERYWHERE:
            if role != Role.PLATFORM:
                raise Invalid(
                    f"the grant for {EVERYWHERE!r} (all namespaces) must be platform, not {role!r:.40}",
                    field="grants",
                )
        else:
            try:
                check_name(namespace, "namespace")
            except ValueError as error:
                raise Invalid(str(error), field="grants") from None
            if role not in GRANTED:
                raise Invalid(
                    f"the role in {namespace!r} must be one of {', '.join(GRANTED)}, not {role!r:.40}",
                    field="grants",
                )
        grants[namespace] = Role(role)
    return grants
