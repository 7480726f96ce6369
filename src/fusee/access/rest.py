"""API keys of the caller's namespace."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, Field

from fusee.access.actions import ACTIONS
from fusee.access.principal import Principal
from fusee.access.service import KeyOperations
from fusee.access.store import ApiKey
from fusee.surfaces.rest.answers import answer_of
from fusee.surfaces.rest.asking import Admin, IdempotencyKey, Viewer, audit, body_of, checked_key
from fusee.surfaces.rest.bodies import Incoming
from fusee.surfaces.rest.context import context_of, service_of, services_of
from fusee.surfaces.rest.reading import read_json
from fusee.values.fields import shown

__all__ = ["me", "router"]

router = APIRouter(prefix="/api/v1/keys", tags=["keys"], dependencies=[Admin])


class KeyIn(Incoming):
    """A key to make."""

    name: str = Field(description="Whom or what it is for.")
    role: str = Field(default="operator", description="viewer, operator or admin")
    grants: dict[str, str] = Field(
        default_factory=dict,
        description='Roles in other namespaces, or {"*": "platform"} for all. You must be an admin there.',
        examples=[{"reports": "viewer"}],
    )
    expires_in: float | None = Field(default=None, description="Seconds until it expires; null: it does not.")


class RotateIn(Incoming):
    """How to replace a key."""

    overlap: float = Field(default=86_400.0, description="Seconds that the old key still works.")


KeyOut = answer_of("KeyOut", ApiKey)


class KeyPage(BaseModel):
    items: list[KeyOut]  # type: ignore[valid-type]


class KeyMade(BaseModel):
    """The key is shown this once."""

    id: int
    name: str
    role: str
    key: str


@router.get("", response_model=KeyPage)
async def list_keys(request: Request) -> dict[str, Any]:
    """The keys, revoked ones too; never the keys themselves."""
    return {"items": [shown(key) for key in await service_of(request, KeyOperations).list()]}


@router.post(
    "",
    status_code=201,
    openapi_extra=body_of(KeyIn),
    responses={
        409: {
            "description": "The first key of all must be an admin's; or the idempotency key was used before:"
            " the secret is shown once only."
        }
    },
)
async def create_key(request: Request, idempotency_key: IdempotencyKey = None) -> KeyMade:
    """Make a key: shown in this answer and never again. From the first key on, every caller needs one."""
    wanted = await read_json(request, KeyIn, "a key")
    key_id, key = await service_of(request, KeyOperations).create(
        wanted.name,
        wanted.role,
        grants=wanted.grants,
        expires_in=wanted.expires_in,
        by=_principal(request),
        idempotency_key=checked_key(idempotency_key),
        first_is_admin=True,
    )
    services_of(request).authenticator.forget()
    audit(request, "key created", key_id=key_id, key_name=wanted.name, role=wanted.role)
    return KeyMade(id=key_id, name=wanted.name, role=wanted.role, key=key)


@router.delete("/{key_id}", status_code=204)
async def revoke_key(request: Request, key_id: Annotated[int, Path(ge=1, le=2**63 - 1)]) -> Response:
    """The key works no more: here at once, in other processes within a second."""
    await service_of(request, KeyOperations).revoke(key_id)
    services_of(request).authenticator.forget()
    audit(request, "key revoked", key_id=key_id)
    return Response(status_code=204)


@router.post("/{key_id}/rotate", status_code=201, openapi_extra=body_of(RotateIn, required=False))
async def rotate_key(
    request: Request,
    key_id: Annotated[int, Path(ge=1, le=2**63 - 1)],
    idempotency_key: IdempotencyKey = None,
) -> KeyMade:
    """Replace a key by a new one with the same name, role and grants; the old one works a while longer."""
    wanted = await read_json(request, RotateIn, "a rotation", optional=True)
    new, key = await service_of(request, KeyOperations).rotate(
        key_id, overlap=wanted.overlap, idempotency_key=checked_key(idempotency_key)
    )
    services_of(request).authenticator.forget()
    audit(request, "key rotated", key_id=key_id, new_key_id=new.id, key_name=new.name)
    return KeyMade(id=new.id, name=new.name, role=new.role, key=key)


class MeOut(BaseModel):
    """Who you are to this server, and what you may do."""

    name: str = Field(examples=["deploy"])
    kind: str = Field(description="How you proved it: `api key` or `local`.", examples=["api key"])
    namespace: str = Field(description="The namespace of this request.", examples=["default"])
    role: str = Field(description="Your role in it.", examples=["operator"])
    grants: dict[str, str] = Field(description="Your role in each namespace; `*` stands for all.")
    actions: list[str] = Field(description="What you may do in this namespace.", examples=[["runs.list"]])


me = APIRouter(prefix="/api/v1", tags=["keys"], dependencies=[Viewer])


@me.get("/me")
async def who_am_i(request: Request) -> MeOut:
    """Tell who the caller is: name, namespace, role, and every action that the role allows."""
    caller = context_of(request).caller
    assert caller is not None
    return MeOut(
        name=caller.name,
        kind=caller.principal.kind,
        namespace=caller.namespace,
        role=caller.role,
        grants={namespace: str(role) for namespace, role in caller.principal.grants.items()},
        actions=sorted(action for action, least in ACTIONS.items() if caller.role.includes(least)),
    )


def _principal(request: Request) -> Principal:
    caller = context_of(request).caller
    assert caller is not None
    return caller.principal
