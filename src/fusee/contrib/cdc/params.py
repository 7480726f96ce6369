"""What callers give as `after` (and may give as `before`), for each operation; strict, nothing unknown."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

__all__ = ["CONFIG", "Az", "Config", "Gtid", "Migration", "Nothing", "Params", "RunSystem"]

Name = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^\s/]+$")]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]

UUID = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
MYSQL = rf"{UUID}(:[0-9]+(-[0-9]+)?)+(,{UUID}(:[0-9]+(-[0-9]+)?)+)*"
MARIADB = r"[0-9]+-[0-9]+-[0-9]+(,[0-9]+-[0-9]+-[0-9]+)*"

CONFIG = ("cpu", "memory", "max_package_size", "replicas")


class Params(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Nothing(Params):
    """The operation says it all."""


class Az(Params):
    az: Name


class Gtid(Params):
    gtid: Annotated[str, StringConstraints(max_length=100_000, pattern=rf"^({MYSQL}|{MARIADB})?$")]
    """A GTID set as MySQL or MariaDB writes it; empty: from the beginning."""


class RunSystem(Params):
    run_system: Name


class Config(Params):
    """What is left out stays as it is."""

    cpu: Count | None = None
    """Thousandths of a core, or whatever unit your control plane counts in; so with the others."""
    memory: Count | None = None
    max_package_size: Count | None = None
    replicas: Count | None = None

    @model_validator(mode="after")
    def _something(self) -> Self:
        if all(getattr(self, name) is None for name in CONFIG):
            raise ValueError(f"give at least one of {', '.join(CONFIG)}")
        return self


class Migration(Params):
    """What the new CDC job shall be; what is left out is taken over from the Panama job."""

    cdc_job: Name | None = None
    """Its id; `cdc-` and the Panama job's id when left out."""
    az: Name | None = None
    run_system: Name | None = None
    cpu: Count | None = None
    memory: Count | None = None
    max_package_size: Count | None = None
    replicas: Count | None = None
