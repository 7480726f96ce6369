"""The store and its contract."""

from fusee.store.contract import Enqueued, Exchanged, Finished, LaneMap, Order, Settlement
from fusee.store.keys import ApiKey
from fusee.store.runs import RunFilter
from fusee.store.store import Store, open_store
from fusee.store.upkeep import Promoted, Pruned, Recovered

__all__ = [
    "ApiKey",
    "Enqueued",
    "Exchanged",
    "Finished",
    "LaneMap",
    "Order",
    "Promoted",
    "Pruned",
    "Recovered",
    "RunFilter",
    "Settlement",
    "Store",
    "open_store",
]
