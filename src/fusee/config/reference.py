"""The configuration's documentation, made from the fields that enforce it."""

import json
import re
import textwrap
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le

from fusee.config.keys import ALIASES, Key, KeyPath, dotted, groups, keys, variable
from fusee.config.units import TypeName, format_duration, format_size

__all__ = ["example_toml", "reference"]

_HEAD = """\
# Configuration

<!-- Made by tools/document_config.py from src/fusee/config/sections; edit the descriptions there. -->

Settings come from four places; the later wins, key by key:

1. the defaults below,
2. a file: the one given by `--config`, else by `FUSEE_CONFIG`, else `fusee.toml`, `fusee.yaml` or
   `fusee.yml` in the working directory,
3. environment variables: `FUSEE_`, then the key in capitals with `__` for each dot,
4. command-line flags.

Tables such as `worker.labels` are merged entry by entry; lists are replaced. An unknown key or variable
is refused with the nearest name, and every error tells the file and line.

**Durations** are written with units (`250ms`, `10s`, `2m`, `1h30m`, `7d`) or as a plain number of seconds
(`90`, `0.25`). **Sizes** are written with units (`64KiB`, `1MB`, `8MiB`) or as a plain number of bytes.

In an environment variable, a list is written `a,b` or as JSON `["a", "b"]`, and a table `gpu=yes,zone=x`
or as JSON; one entry of a table has a variable of its own, `FUSEE_WORKER__LABELS__gpu=yes`. An empty variable
sets nothing. `FUSEE_CONFIG`, `FUSEE_URL`, `FUSEE_API_KEY`, `FUSEE_TEST_*`, `FUSEE_BENCH_*` and what
Kubernetes sets for a Service named `fusee` are not settings.
"""

_PLACEHOLDERS: dict[KeyPath, str] = {
    ("tls", "cert_file"): "/etc/fusee/tls/tls.crt",
    ("tls", "key_file"): "/etc/fusee/tls/tls.key",
    ("tls", "client_ca_file"): "/etc/fusee/tls/clients.crt",
    ("auth", "jwt", "keys"): "https://id.example.com/.well-known/jwks.json",
    ("auth", "jwt", "issuer"): "https://id.example.com",
    ("auth", "jwt", "audience"): "fusee",
    ("dispatcher", "alert_webhook"): "https://alerts.example/hook",
    ("api", "public_url"): "https://fusee.example.com",
    ("worker", "worker_id"): "worker-001",
    ("executors", "shell", "user"): "fusee-jobs",
    ("executors", "kubernetes", "namespace"): "jobs",
    ("executors", "kubernetes", "server"): "https://10.0.0.1:6443",
    ("executors", "kubernetes", "token_file"): "/etc/fusee/kubernetes.token",
    ("executors", "kubernetes", "ca_file"): "/etc/fusee/kubernetes-ca.crt",
    ("executors", "kubernetes", "kubeconfig"): "/etc/fusee/kubeconfig",
    ("executors", "kubernetes", "service_account"): "jobs",
    ("executors", "kubernetes", "template"): "/etc/fusee/pod.yaml",
    ("executors", "dask", "ca_file"): "/etc/fusee/dask-ca.crt",
    ("executors", "dask", "cert_file"): "/etc/fusee/dask.crt",
    ("executors", "dask", "key_file"): "/etc/fusee/dask.key",
    ("status", "bind_address"): "127.0.0.1:9090",
    ("worker", "app"): "myproject.jobs:app",
    ("worker", "address"): "10.0.0.7",
    ("worker", "cpu"): "4",
    ("worker", "memory"): "8GiB",
    ("worker", "max_memory"): "2GiB",
}


def reference() -> str:
    """The text of docs/configuration.md."""
    sections = [_section(group) for group in groups() if _keys_of(group)]
    aliases = [f"| `{dotted(alias)}` | `{dotted(path)}` |" for alias, path in ALIASES.items()]
    return "\n".join(
        [
            _HEAD,
            *sections,
            "## Other names\n\nAccepted for files written to an earlier design.\n",
            "| written | means |\n|---|---|",
            *aliases,
            "\n## All of it\n\nEvery key with its default; those that have none of their own are comments.\n",
            f"```toml\n{_sample(mark='')}```",
            "",
        ]
    )


def example_toml() -> str:
    """A file that sets nothing: every default with its meaning, in comments, ready to be uncommented."""
    return _sample(mark="# ")


def _section(group: KeyPath) -> str:
    field = groups()[group]
    title = f"## `{dotted(group)}`\n\n{field.description}" if field else "## Top level"
    rows = [
        f"| `{key.path[-1]}` | {_kind(key)} | {_default(key)} | `{variable(key.path)}` "
        f"| {key.field.description} |"
        for key in _keys_of(group)
    ]
    return "\n".join(
        [title, "", "| key | type | default | environment | meaning |", "|---|---|---|---|---|", *rows, ""]
    )


def _keys_of(group: KeyPath) -> list[Key]:
    return [key for key in keys().values() if key.path[:-1] == group]


def _kind(key: Key) -> str:
    named = [mark.name for mark in key.field.metadata if isinstance(mark, TypeName)]
    annotation = key.field.annotation
    if named:
        return named[0] + _limits(key, duration=named == ["duration"], size=named == ["size"])
    if key.is_list:
        return "list of text"
    if key.is_table:
        return "table of text"
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(f"`{choice}`" for choice in get_args(annotation))
    return "true or false" if annotation is bool else "text"


def _limits(key: Key, *, duration: bool, size: bool) -> str:
    def write(limit: Any) -> str:
        return format_duration(float(limit)) if duration else format_size(limit) if size else str(limit)

    least = [mark.ge for mark in key.field.metadata if isinstance(mark, Ge)]
    more = [mark.gt for mark in key.field.metadata if isinstance(mark, Gt)]
    most = [mark.le for mark in key.field.metadata if isinstance(mark, Le)]
    if least and most:
        return f", {write(least[0])} to {write(most[0])}"
    if least:
        return f", {write(least[0])} or more"
    return f", more than {write(more[0])}" if more else ""


def _default(key: Key) -> str:
    return "none" if key.default is None else f"`{_toml(key)}`"


def _toml(key: Key) -> str:
    named = [mark.name for mark in key.field.metadata if isinstance(mark, TypeName)]
    match key.default:
        case float() if key.path[-1].endswith("_seconds"):
            return f"{key.default:g}"
        case float() if named == ["duration"]:
            return json.dumps(format_duration(key.default))
        case float():
            return f"{key.default:g}"
        case int() if named == ["size"]:
            return json.dumps(format_size(key.default))
        case tuple():
            return json.dumps(list(key.default))
        case None:
            return json.dumps(_PLACEHOLDERS[key.path])
        case default if key.is_table:
            return (
                "{" + ", ".join(f"{_bare(name)} = {json.dumps(text)}" for name, text in default.items()) + "}"
            )
    return json.dumps(key.default)


def _bare(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _sample(mark: str) -> str:
    lines: list[str] = []
    for group, field in groups().items():
        if not _keys_of(group):
            continue
        if field:
            lines += ["", f"# {field.description}", f"[{dotted(group)}]"]
        for key in _keys_of(group):
            lines += [
                "",
                *textwrap.wrap(key.field.description or "", 100, initial_indent="# ", subsequent_indent="# "),
            ]
            # A default that follows another key would stop following it once written down.
            unset = key.default is None or key.field.default_factory is not None
            lines.append(f"{'# ' if unset else mark}{key.path[-1]} = {_toml(key)}")
    return "\n".join(lines).lstrip("\n") + "\n"
