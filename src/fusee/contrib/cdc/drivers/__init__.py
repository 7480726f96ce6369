"""Drivers: each speaks to one kind of control plane."""

__all__: list[str] = []
