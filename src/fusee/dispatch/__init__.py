"""Recover, promote, prune."""

from fusee.dispatch.dispatcher import Dispatcher
from fusee.dispatch.promote import Promote
from fusee.dispatch.prune import Prune
from fusee.dispatch.recover import Recover

__all__ = ["Dispatcher", "Promote", "Prune", "Recover"]
