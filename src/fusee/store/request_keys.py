"""What an idempotency key is bound to: the kind of request, and a digest of what it asked for.

Stored beside the key as `kind:sha256`. The same key with another digest is refused. A key that was accepted
before revision 0008 has no digest, and is not compared.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from hashlib import sha256
from typing import Any

import msgspec

from fusee.errors import Conflict, Invalid

__all__ = ["RequestDigest", "asked", "check_same", "digest_of", "used_for_another"]

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


def asked(spec: Any, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
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
