"""The ways a run executes, each with its limits."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PlainSerializer

from fusee.config.addresses import check_host, check_public_url
from fusee.config.environment_names import check_names
from fusee.config.sections.section import SECRET, Labels, Section, Table
from fusee.config.units import Duration, Size

__all__ = [
    "BulkConfig",
    "DaskConfig",
    "ExecutorsConfig",
    "HttpConfig",
    "KubernetesConfig",
    "PythonConfig",
    "ShellConfig",
]

_TAIL = "How many bytes of the end of a run's output are kept."


def _check_prefix(prefix: str) -> str:
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,18}[a-z0-9])?", prefix):
        raise ValueError("must be 1 to 20 lower-case letters, digits or dashes, the first a letter")
    return prefix


def _check_callable(pattern: str) -> str:
    module, colon, name = pattern.partition(":")
    if not module or not colon or not name or ":" in name or "." in name:
        raise ValueError("must be module:name with no dot after the colon, such as shop.jobs:*")
    return pattern


class KubernetesConfig(Section):
    enabled: bool = Field(
        default=False,
        description="Whether this worker hands runs to a Kubernetes cluster. Whoever may create a run may "
        "then run images there.",
    )
    images: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description="The images that may be run, with `*` for any text, such as "
        "`registry.example.com/jobs/*`; empty allows none.",
    )
    namespace: str | None = Field(
        default=None,
        description="The cluster's namespace for Jobs; left out, the worker's own, or `default`.",
    )
    server: Annotated[str, AfterValidator(check_public_url)] | None = Field(
        default=None,
        description="The API server, as https://host:port; left out, it is found by `kubeconfig`, or as a "
        "pod of the cluster finds it.",
    )
    token_file: str | None = Field(
        default=None, description="With `server`: a file with the token to show, read at every call."
    )
    ca_file: str | None = Field(
        default=None, description="With `server`: the certificate authority that signed its certificate."
    )
    kubeconfig: str | None = Field(
        default=None,
        description="A kubeconfig file whose current context is used; programs in it are not run.",
    )
    service_account: str | None = Field(
        default=None, description="The service account of the pods; left out, the namespace's default."
    )
    template: str | None = Field(
        default=None,
        description="A YAML file with a pod template: volumes, tolerations and the like for every Job, and a "
        "container named `run` for settings of ours.",
    )
    prefix: Annotated[str, AfterValidator(_check_prefix)] = Field(
        default="fusee",
        description="The prefix of the names of Jobs. Two databases that share a namespace of a cluster need "
        "different prefixes.",
    )
    start_timeout: Duration = Field(
        default=300.0,
        gt=0,
        description="A Job whose container has not started within this time is deleted, and its run fails.",
    )
    deadline: Duration = Field(
        default=86400.0,
        gt=0,
        description="The deadline that Kubernetes enforces for a Job whose run has no timeout. It ends "
        "Jobs that no worker follows any more.",
    )
    keep: Duration = Field(default=3600.0, description="How long Kubernetes keeps a Job that has ended.")
    poll_interval: Duration = Field(
        default=10.0,
        ge=0.1,
        description="How often the state of a Job is read when its watch reports nothing.",
    )
    output_tail: Size = Field(default=64 * 2**10, ge=1, description=_TAIL)


class DaskConfig(Section):
    enabled: bool = Field(
        default=False,
        description="Whether this worker hands runs to a Dask cluster; needs the extra `dask`.",
    )
    scheduler: str = Field(
        default="tcp://127.0.0.1:8786", description="The scheduler's address, as tcp:// or tls://host:port."
    )
    allow: tuple[Annotated[str, AfterValidator(_check_callable)], ...] = Field(
        default=(),
        description="The functions that runs may call, as `module:name` with `*` for any text, such as "
        "`shop.jobs:*`: the functions that this module defines. What it imports must be listed by name. "
        "Empty allows none.",
    )
    connect_timeout: Duration = Field(
        default=30.0, gt=0, description="How long to wait for the scheduler before a run fails."
    )
    output_tail: Size = Field(default=64 * 2**10, ge=1, description=_TAIL)
    ca_file: str | None = Field(default=None, description="With tls://: the certificate authority.")
    cert_file: str | None = Field(default=None, description="With tls://: the certificate of this worker.")
    key_file: str | None = Field(default=None, description="With tls://: its key.")


_NamesByProgram = Annotated[
    Mapping[str, Annotated[str, AfterValidator(check_names)]],
    AfterValidator(Table),
    PlainSerializer(dict, return_type=dict[str, str]),
]


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
    timeout: Duration = Field(default=15.0, gt=0, description="The timeout of a call whose task sets none.")
    allow_private: tuple[Annotated[str, AfterValidator(check_host)], ...] = Field(
        default=(),
        description='Hosts or networks that may be called although private, such as `["127.0.0.0/8", '
        '"svc.internal"]`. All others on private, loopback and link-local addresses are refused.',
    )
    max_response: Size = Field(
        default=2**20, ge=1024, description="A longer response is cut off at this size."
    )
    output_tail: Size = Field(default=64 * 2**10, description=_TAIL)


class PythonConfig(Section):
    isolation: Literal["thread", "process"] = Field(
        default="thread",
        description="Where plain functions run: `thread` is faster, `process` can be killed when a handler "
        "does not stop.",
    )


class BulkConfig(Section):
    folders: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description="The folders whose files a bulk job that was created over the API or by a run may read. "
        "Jobs that were created in code or with `fusee bulk create` may read any file.",
    )
    databases: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description="The databases that such a job may query, written like `url` in its source, such as "
        '`["env:CRM"]`.',
    )
    max_download: Size = Field(
        default=10 * 2**30, ge=1024, description="The most that is fetched from the URL of one source."
    )
    max_unpacked: Size = Field(
        default=10 * 2**30, ge=1024, description="The most that one compressed file may hold, unpacked."
    )
    max_record: Size = Field(
        default=4 * 2**20,
        ge=1024,
        description="The longest record (line) of a file; 64 times as much is held of records that are read "
        "together.",
    )


class ExecutorsConfig(Section):
    shell: ShellConfig = Field(default_factory=ShellConfig, description="Programs on the worker's machine.")
    http: HttpConfig = Field(default_factory=HttpConfig, description="HTTP calls.")
    python: PythonConfig = Field(
        default_factory=PythonConfig, description="Handlers registered in your application."
    )
    bulk: BulkConfig = Field(
        default_factory=BulkConfig, description="What bulk jobs that were created from outside may read."
    )
    kubernetes: KubernetesConfig = Field(
        default_factory=KubernetesConfig, description="Jobs of a Kubernetes cluster."
    )
    dask: DaskConfig = Field(default_factory=DaskConfig, description="Functions on a Dask cluster.")
