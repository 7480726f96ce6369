"""What brings runs to workers: the database itself, or messages. It carries hints, never the truth."""

from fusee.broker.depot import Depot
from fusee.broker.desk import Desk, Starters

__all__ = ["Depot", "Desk", "Starters"]
