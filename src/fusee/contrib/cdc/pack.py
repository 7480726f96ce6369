"""Registering the pack: as anyone registers operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusee.contrib.cdc.driver import Driver
from fusee.contrib.cdc.operations import OPERATIONS

if TYPE_CHECKING:
    from fusee.app.fusee import Fusee

__all__ = ["register"]


def register(app: Fusee, driver: Driver) -> None:
    """Give the app every operation that this driver's control plane can do.

    Retries are those of all batch operations: two more tries after a timeout, or after a lost worker.
    """
    for kind in OPERATIONS:
        name, operation = kind.batch_type, kind(driver)
        for target_type in kind.target_types:
            if driver.serves(target_type, name):
                app.operation(target_type, name, params=kind.params, timeout=kind.timeout)(operation)
    app.on_close(driver.close)
