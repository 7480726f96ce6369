"""Runs as Kubernetes Jobs: handed to a cluster, followed to their end, found again by the next attempt."""
