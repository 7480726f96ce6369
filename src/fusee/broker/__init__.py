"""What brings runs to workers: the database itself, or messages. It carries hints, never the truth."""

from fusee.broker.depot import Depot
from fusee.broker.desk import Commands, Desk

__all__ = ["Commands", "Depot", "Desk"]
