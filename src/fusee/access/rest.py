"""API keys of the caller's namespace."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, Field

from fusee.access.store import ApiKey
from fusee.surfaces.rest.answers import answer_of
from fusee.surfaces.rest.asking import Admin, IdempotencyKey, audit, body_of, checked_key
from fusee.surfaces.rest.bodies import Incoming
from fusee.surfaces.rest.context import operations_of
from fusee.surfaces.rest.keyring import Keyring
from fusee.surfaces.rest.reading import read_json
from fusee.values.fields import shown

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/keys", tags=["keys"], dependencies=[Admin])


class KeyIn(Incoming):
    """A key to make."""

    name: str = Field(description="Whom or what it is for.")
    role: str = Field(default="operator", description="viewer, operator or admin")


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
    return {"items": [shown(key) for key in await operations_of(request).keys.list()]}


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
    key_id, key = await operations_of(request).keys.create(
        wanted.name,
        wanted.role,
        idempotency_key=checked_key(idempotency_key),
        first_is_admin=True,
    )
    _keyring(request).forget()
    audit(request, "key created", key_id=key_id, key_name=wanted.name, role=wanted.role)
    return KeyMade(id=key_id, name=wanted.name, role=wanted.role, key=key)


@router.delete("/{key_id}", status_code=204)
async def revoke_key(request: Request, key_id: Annotated[int, Path(ge=1, le=2**63 - 1)]) -> Response:
    """The key works no more: here at once, in other processes within a second."""
    await operations_of(request).keys.revoke(key_id)
    _keyring(request).forget()
    audit(request, "key revoked", key_id=key_id)
    return Response(status_code=204)


def _keyring(request: Request) -> Keyring:
    keyring: Keyring = request.app.state.keyring
    return keyring
