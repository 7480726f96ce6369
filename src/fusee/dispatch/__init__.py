"""Scan, aggregate, assign, recover, promote, expire, prune, sweep."""

from fusee.dispatch.aggregate import Aggregate
from fusee.dispatch.assign import Assign
from fusee.dispatch.dispatcher import Dispatcher
from fusee.dispatch.expire import Expire
from fusee.dispatch.promote import Promote
from fusee.dispatch.prune import Prune
from fusee.dispatch.recover import Recover
from fusee.dispatch.scan import Scan
from fusee.dispatch.sweep import Sweep

__all__ = ["Aggregate", "Assign", "Dispatcher", "Expire", "Promote", "Prune", "Recover", "Scan", "Sweep"]
