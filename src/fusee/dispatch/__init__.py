"""Scan, aggregate, recover, promote, expire, prune."""

from fusee.dispatch.aggregate import Aggregate
from fusee.dispatch.dispatcher import Dispatcher
from fusee.dispatch.expire import Expire
from fusee.dispatch.promote import Promote
from fusee.dispatch.prune import Prune
from fusee.dispatch.recover import Recover
from fusee.dispatch.scan import Scan

__all__ = ["Aggregate", "Dispatcher", "Expire", "Promote", "Prune", "Recover", "Scan"]
