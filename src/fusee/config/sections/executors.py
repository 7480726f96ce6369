"""The ways a run executes, each with its limits."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PlainSerializer

from fusee.config.addresses import check_host
from fusee.config.environment_names import check_names
from fusee.config.sections.engines import DaskConfig, KubernetesConfig
from fusee.config.sections.section import SECRET, Section
from fusee.config.table import Labels, Table
from fusee.config.units import Duration, Size

__all__ = ["BulkConfig", "ExecutorsConfig", "HttpConfig", "PythonConfig", "ShellConfig"]

_NamesByProgram = Annotated[
    Mapping[str, Annotated[str, AfterValidator(check_names)]],
    AfterValidator(Table),
    PlainSerializer(dict, return_type=dict[str, str]),
]
_TAIL = "How much of the end of a run's output is kept."


class ShellConfig(Section):
    enabled: bool = Field(
        default=False,
        description="Whether runs may start programs on this worker. Whoever may create a run may then "
        "run commands.",
    )
    allow: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(), description="The programs that may be started, by name or path; empty allows any."
    )
    environment: Annotated[Labels, SECRET] = Field(
        default=Table(), description="Environment variables given to every program."
    )
    inherit: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=("HOME", "LANG", "LC_*", "PATH", "TMPDIR", "TZ"),
        description="Variables of the worker's own environment that programs get, with `*` for any text; "
        "what begins with `FUSEE_` only when it is written out.",
    )
    settable: _NamesByProgram = Field(
        default=Table({"*": "JOB_*"}),
        description="Variables that the `env` of a payload may set, by program (as in `allow`; `*` for every "
        'one), such as `{"*" = "JOB_*", pg_dump = "PGHOST PGPORT"}`. A table of your own replaces this one.',
    )
    user: str | None = Field(
        default=None,
        description="The user that programs run as, by name or number, with `:group` after it for another "
        "group than the user's own; no other groups. The worker must be root, or have CAP_SETUID, CAP_SETGID "
        "and CAP_KILL. Left out, they run as the worker's user, and can read what it can read.",
    )
    output_tail: Size = Field(default=64 * 2**10, description=_TAIL)


class HttpConfig(Section):
    enabled: bool = Field(default=True, description="Whether runs may make HTTP calls from this worker.")
    timeout: Duration = Field(
        default=15.0, gt=0, description="How long a call may take when its task does not say."
    )
    allow_private: tuple[Annotated[str, AfterValidator(check_host)], ...] = Field(
        default=(),
        description='Hosts or networks that may be called although private, such as `["127.0.0.0/8", '
        '"svc.internal"]`. All others on private, loopback and link-local addresses are refused.',
    )
    max_response: Size = Field(
        default=2**20, ge=1024, description="A response longer than this is cut off there."
    )
    output_tail: Size = Field(default=64 * 2**10, description=_TAIL)


class PythonConfig(Section):
    isolation: Literal["thread", "process"] = Field(
        default="thread",
        description="Where plain functions run: `thread` is fast, `process` can be killed when it "
        "will not stop.",
    )


class BulkConfig(Section):
    folders: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description="Folders whose files a bulk job may read that was created over the API or by a run; jobs "
        "created in code or with `fusee bulk create` may read any.",
    )
    databases: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description="Databases that such a job may ask, written as its source writes `url`, such as "
        '`["env:CRM"]`.',
    )


class ExecutorsConfig(Section):
    shell: ShellConfig = Field(default_factory=ShellConfig, description="Programs on the worker's machine.")
    http: HttpConfig = Field(default_factory=HttpConfig, description="HTTP calls.")
    python: PythonConfig = Field(
        default_factory=PythonConfig, description="Handlers registered in your application."
    )
    bulk: BulkConfig = Field(
        default_factory=BulkConfig, description="What bulk jobs that were asked for from outside may read."
    )
    kubernetes: KubernetesConfig = Field(
        default_factory=KubernetesConfig, description="Jobs of a Kubernetes cluster."
    )
    dask: DaskConfig = Field(default_factory=DaskConfig, description="Functions on a Dask cluster.")
