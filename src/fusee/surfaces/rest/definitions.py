"""What the routes of definitions share: tasks, templates and workflows have a name, a version and fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fastapi import Depends, Path, Request, Response
from pydantic import BaseModel

from fusee.surfaces.rest.asking import Body, Operator, Viewer, audit, body_of
from fusee.surfaces.rest.bodies import ETAG, etag, version_from
from fusee.surfaces.rest.paths import link
from fusee.surfaces.rest.reading import read_object
from fusee.values.fields import Form
from fusee.values.names import NAME, check_name

__all__ = ["STALE", "Definition", "name_of"]

STALE = {"description": "It is at another version, or keeps its name."}
_TAKEN = {"description": "The name is taken, or the idempotency key was used for another request."}


def name_of(noun: str) -> Any:
    """The dependency that reads the name of such a thing in the path."""
    path = Path(
        alias=noun,
        description=f"The {noun}'s name, slashes and all.",
        json_schema_extra={"pattern": f"^{NAME}$"},
    )

    async def name(value: str = path) -> str:
        return check_name(value, noun)

    return Depends(name)


@dataclass(frozen=True, kw_only=True)
class Definition:
    """One kind of thing that people define. The properties are arguments of the decorators of its routes."""

    noun: str
    place: str
    """Where they are in the API: `workflows`."""
    form: Form[Any]
    answer: type[BaseModel]
    create: Body
    replace: Body
    example: Mapping[str, Any]
    kept: frozenset[str] = frozenset({"version"})
    """The members of an answer that mean something when they are sent back."""
    made: Mapping[str, Any] | None = None
    """The headers of the answer to a create, when it has more than the ETag."""

    @property
    def creating(self) -> dict[str, Any]:
        made = self.made or ETAG
        known = {"model": self.answer, "description": "The idempotency key had been used before.", **made}
        return {
            "status_code": 201,
            "dependencies": [Operator],
            "openapi_extra": body_of(self.create, example=self.example),
            "response_model": self.answer,
            "responses": {200: known, 201: made, 409: _TAKEN},
        }

    @property
    def getting(self) -> dict[str, Any]:
        return {"dependencies": [Viewer], "responses": {200: ETAG}, "response_model": self.answer}

    @property
    def replacing(self) -> dict[str, Any]:
        return self.changing(self.replace, {**self.example, "version": 1})

    def changing(self, body: Body, example: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "dependencies": [Operator],
            "openapi_extra": body_of(body, example=example),
            "response_model": self.answer,
            "responses": {200: ETAG, 409: STALE},
        }

    @property
    def deleting(self) -> dict[str, Any]:
        return {"status_code": 204, "dependencies": [Operator], "responses": {409: STALE}}

    @cached_property
    def added(self) -> frozenset[str]:
        """The members of an answer that the server adds; sent back, they are ignored."""
        return frozenset(self.answer.model_fields) - self.form.fields.keys() - self.kept

    async def fields(self, request: Request) -> dict[str, Any]:
        return await read_object(request, f"{self.form.called} is an object such as {self.form.example}")

    async def replacement(self, request: Request) -> dict[str, Any]:
        """The fields of a thing as it shall be: an answer can be edited and sent back."""
        return {key: value for key, value in (await self.fields(request)).items() if key not in self.added}

    async def replacement_of(
        self, request: Request, name: str, if_match: str | None
    ) -> tuple[dict[str, Any], int | None]:
        """(its fields, the version that is meant); the name may be left out."""
        fields = await self.replacement(request)
        version = version_from(fields.pop("version", None), if_match)
        return {"name": name, **fields}, version

    def created(self, request: Request, response: Response, ref: str | int, new: bool, **facts: Any) -> None:
        """Tell where it is, and whether it is new; a repeat of a request is not in the log again."""
        response.headers["Location"] = link(request, self.place, ref)
        response.status_code = 201 if new else 200
        if new:
            audit(request, f"{self.noun} created", **facts)

    @staticmethod
    def at_version(response: Response, version: int, shown: dict[str, Any]) -> dict[str, Any]:
        """The answer, with its version as ETag."""
        response.headers.update(etag(version))
        return shown
