"""The store of bulk jobs, composed of its parts."""

from __future__ import annotations

from fusee.bulk.store.businesses import BusinessRegistry
from fusee.bulk.store.checkpoints import BulkCheckpoints
from fusee.bulk.store.checks import BulkChecks
from fusee.bulk.store.deletes import BulkDeletes
from fusee.bulk.store.jobs import BulkJobs
from fusee.bulk.store.moves import BulkMoves
from fusee.bulk.store.owner import BulkOwner
from fusee.bulk.store.queries import BulkQueries
from fusee.bulk.store.stalls import BulkStalls
from fusee.engine.store.context import StoreContext
from fusee.engine.store.engine_store import EngineStore

__all__ = ["BulkStore"]


class BulkStore:
    """What can be asked of the database about bulk jobs, for one namespace."""

    def __init__(self, context: StoreContext, engine: EngineStore) -> None:
        self.engine = engine
        self.businesses = BusinessRegistry(context, engine.sessions)
        self.moves = BulkMoves(context, engine.run_writer, engine.lanes, engine.cancels, engine.outbox)
        self.checkpoints = BulkCheckpoints(context, self.moves)
        self.checks = BulkChecks(context, self.moves)
        self.queries = BulkQueries(context)
        self.deletes = BulkDeletes(context, self.moves, self.queries)
        self.jobs = BulkJobs(context, self.moves, self.checks, self.businesses, engine.outbox, self.queries)
        self.stalls = BulkStalls(context, self.moves)
        self.owner = BulkOwner(context, engine.parents, self.moves)
