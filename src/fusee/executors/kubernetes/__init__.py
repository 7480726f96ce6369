"""Runs as Kubernetes Jobs: handed to a cluster, followed to their end, found again by whoever comes next."""

from fusee.executors.kubernetes.access import Access, NoAccess, find_access
from fusee.executors.kubernetes.executor import KubernetesExecutor
from fusee.executors.kubernetes.manifest import Shape
from fusee.executors.kubernetes.payload import check_kubernetes

__all__ = ["Access", "KubernetesExecutor", "NoAccess", "Shape", "check_kubernetes", "find_access"]
