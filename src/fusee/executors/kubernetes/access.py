"""The address and credentials of the API server: from inside the cluster, from settings, or a kubeconfig."""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

__all__ = ["Access", "NoAccess", "find_access"]

INSIDE = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class NoAccess(ValueError):
    """No cluster is configured; the text says what to set."""


@dataclass(frozen=True, slots=True)
class Access:
    server: str
    namespace: str
    token_file: Path | None = None
    """Read at every call: Kubernetes rotates it every hour."""
    token: str | None = None
    ca_file: Path | None = None
    ca_data: str | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    def headers(self) -> dict[str, str]:
        token = self.token_file.read_text().strip() if self.token_file is not None else self.token
        return {} if token is None else {"Authorization": f"Bearer {token}"}

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS settings; None for plain HTTP (a local proxy). Certificates are always checked."""
        if not self.server.startswith("https://"):
            return None
        context = ssl.create_default_context(cafile=self.ca_file, cadata=self.ca_data)
        if self.cert_file is not None:
            context.load_cert_chain(self.cert_file, self.key_file)
        return context


def find_access(
    *,
    server: str | None = None,
    namespace: str | None = None,
    token_file: str | None = None,
    ca_file: str | None = None,
    kubeconfig: str | None = None,
    environment: Mapping[str, str] = os.environ,
    inside: Path = INSIDE,
) -> Access:
    """Return the access by `server` if given, else by `kubeconfig`, else as a pod of the cluster."""
    if server is not None:
        return Access(
            server.rstrip("/"), namespace or "default", _path(token_file), None, _path(ca_file), None
        )
    if kubeconfig is not None:
        return _from_kubeconfig(Path(kubeconfig).expanduser(), namespace)
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (inside / "token").exists():
        raise NoAccess(
            "this worker is in no cluster: set executors.kubernetes.server (and token_file, ca_file), or"
            " executors.kubernetes.kubeconfig; in a pod, let its service account's token be mounted"
        )
    name = f"[{host}]" if ":" in host else host
    own = namespace or (inside / "namespace").read_text().strip()
    return Access(f"https://{name}:{port}", own, inside / "token", None, inside / "ca.crt")


def _from_kubeconfig(path: Path, namespace: str | None) -> Access:
    try:
        whole: dict[str, Any] = yaml.safe_load(path.read_text())
        context = _named(whole["contexts"], whole["current-context"])["context"]
        cluster = _named(whole["clusters"], context["cluster"])["cluster"]
        user = _named(whole["users"], context["user"])["user"]
        server = str(cluster["server"]).rstrip("/")
    except (OSError, KeyError, TypeError, StopIteration, yaml.YAMLError) as error:
        raise NoAccess(f"executors.kubernetes.kubeconfig {path} cannot be used: {error!r:.200}") from None
    if cluster.get("insecure-skip-tls-verify"):
        raise NoAccess(f"{path} asks not to check certificates: give it certificate-authority instead")
    if "token" not in user and "tokenFile" not in user and "client-certificate" not in user:
        raise NoAccess(
            f"{path}: user {context['user']!r} has neither token, tokenFile nor client-certificate;"
            " programs that make tokens (exec) are not run"
        )
    data = cluster.get("certificate-authority-data")
    return Access(
        server,
        namespace or context.get("namespace") or "default",
        _path(user.get("tokenFile")),
        user.get("token"),
        _path(cluster.get("certificate-authority")),
        base64.b64decode(data).decode() if data else None,
        _path(user.get("client-certificate")),
        _path(user.get("client-key")),
    )


def _named(entries: Any, name: str) -> Any:
    return next(entry for entry in entries if entry["name"] == name)


def _path(value: str | None) -> Path | None:
    return None if value is None else Path(value)
