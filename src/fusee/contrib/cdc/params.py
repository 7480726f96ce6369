"""What callers give as `after` (and may give as `before`), for each operation; strict, nothing unknown."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

__all__ = ["CONFIG", "Az", "Gtid", "JobConfig", "Migration", "Nothing", "Params", "RunSystem"]

CONFIG = ("cpu", "memory", "max_package_size", "replicas")

UUID = "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
MYSQL = re.compile(rf"{UUID}(:[0-9]+(-[0-9]+)?)+(,{UUID}(:[0-9]+(-[0-9]+)?)+)*")
MARIADB = re.compile(r"[0-9]+-[0-9]+-[0-9]+(,[0-9]+-[0-9]+-[0-9]+)*")


def _name(text: str) -> str:
    if not 1 <= len(text) <= 128 or not text.isprintable() or re.search(r"[\s/]", text):
        raise ValueError("1 to 128 characters without spaces or slashes")
    return text


def _gtid(text: str) -> str:
    if text and not MYSQL.fullmatch(text) and not MARIADB.fullmatch(text):
        raise ValueError(
            "a GTID set such as 3e11fa47-71ca-11e1-9e33-c80aa9429562:1-77 (MySQL) or 0-1-77 (MariaDB),"
            " or empty for the beginning"
        )
    return text


Name = Annotated[str, AfterValidator(_name)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]


class Params(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Nothing(Params):
    """The operation says it all."""


class Az(Params):
    az: Name


class Gtid(Params):
    gtid: Annotated[str, AfterValidator(_gtid)]
    """As MySQL or MariaDB writes it, without spaces; empty: from the beginning."""


class RunSystem(Params):
    run_system: Name


class JobConfig(Params):
    """What is left out stays as it is. Units are those of the control plane."""

    cpu: Count | None = None
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
