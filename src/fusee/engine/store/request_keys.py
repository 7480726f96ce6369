"""What an idempotency key is bound to: the kind of request, and a digest of what it asked for.

Stored beside the key as `kind:sha256`. The same key with another digest is refused. A key that was accepted
before revision 0008 has no digest, and is not compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import IntegrityError

from fusee.engine.store.tables import request_keys
from fusee.errors import Conflict, Invalid

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from fusee.engine.store.database import Database

__all__ = [
    "KeyedRequest",
    "RequestDigest",
    "asked",
    "check_same",
    "digest_of",
    "made_before",
    "remember",
    "used_for_another",
    "write_once",
]

T = TypeVar("T")

_encoder = msgspec.json.Encoder(order="sorted")


class RequestDigest:
    """The digest of a request that may arrive in many parts, such as the targets of a batch."""

    def __init__(self, kind: str, content: Any) -> None:
        self.kind = kind
        self._hash = sha256()
        self.add(content)

    def add(self, part: Any) -> None:
        try:
            self._hash.update(_encoder.encode(part))
        except (TypeError, ValueError, UnicodeEncodeError, RecursionError) as error:
            raise Invalid(f"the request cannot be written as JSON: {error}") from None
        self._hash.update(b"\n")  # where one part ends is part of the content

    def __str__(self) -> str:
        return f"{self.kind}:{self._hash.hexdigest()}"


def digest_of(kind: str, content: Any) -> str:
    return str(RequestDigest(kind, content))


def asked(spec: DataclassInstance, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults: a field that a later version adds changes
    nothing, and neither does a default that is written out."""
    found: dict[str, Any] = {}
    for field in fields(spec):
        value = getattr(spec, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.name not in without and value != default:
            found[field.name] = value.to_dict() if hasattr(value, "to_dict") else value
    return found


def check_same(key: str | None, stored: str | None, given: str, what: str) -> None:
    """`stored` is the digest that the key was used with; None: by a version that kept none."""
    if stored is not None and stored != given:
        raise used_for_another(key, what)


def used_for_another(key: str | None, what: str) -> Conflict:
    return Conflict(
        f"idempotency key {key!r} was used for another request ({what}): use a new key for new work"
    )


@dataclass(slots=True)
class KeyedRequest:
    """A request under a key, for what has no column for a key of its own: tasks, workflows and the like."""

    key: str
    digest: str
    repeated: bool = False
    """Whether the store found that the key had been used for this request before."""

    @classmethod
    def of(cls, key: str | None, kind: str, content: Any) -> KeyedRequest | None:
        return None if key is None else cls(key, digest_of(kind, content))

    @property
    def kind(self) -> str:
        return self.digest.partition(":")[0]


def made_before(connection: Connection, namespace: str, request: KeyedRequest | None) -> str | None:
    """What this request made under its key; `Conflict` when the key was used for another."""
    if request is None:
        return None
    mine = (
        request_keys.c.namespace == namespace,
        request_keys.c.kind == request.kind,
        request_keys.c.idempotency_key == request.key,
    )
    row = connection.execute(select(request_keys).where(*mine)).one_or_none()
    request.repeated = row is not None
    if row is None:
        return None
    check_same(request.key, row.request_digest, request.digest, f"{request.kind} {row.made}")
    return str(row.made)


def remember(
    connection: Connection, namespace: str, request: KeyedRequest | None, made: object, now: int
) -> None:
    """In the transaction that makes it: both are there, or neither is."""
    if request is not None:
        connection.execute(
            insert(request_keys).values(
                namespace=namespace,
                kind=request.kind,
                idempotency_key=request.key,
                request_digest=request.digest,
                made=str(made),
                created_at=now,
            )
        )


async def write_once(database: Database, work: Callable[[Connection], T], request: KeyedRequest | None) -> T:
    """As `write`; another caller may use the key at the same moment: then look again."""
    try:
        return await database.write(work)
    except IntegrityError:
        if request is None:
            raise
        return await database.write(work)
