"""The store of batches, composed of its parts."""

from __future__ import annotations

from fusee.batches.store.commands import BatchCommands
from fusee.batches.store.ends import BatchEnds
from fusee.batches.store.images import BatchImages
from fusee.batches.store.intake import BatchIntake
from fusee.batches.store.moves import BatchMoves
from fusee.batches.store.owner import BatchOwner
from fusee.batches.store.queries import BatchQueries
from fusee.batches.store.retention import BatchRetention
from fusee.batches.store.rollbacks import Rollbacks
from fusee.batches.store.starts import TargetStarts
from fusee.engine.store.context import StoreContext
from fusee.engine.store.engine_store import EngineStore

__all__ = ["BatchStore"]


class BatchStore:
    """What can be asked of the database about batches, for one namespace."""

    def __init__(self, context: StoreContext, engine: EngineStore) -> None:
        self.engine = engine
        starts = TargetStarts(context, engine.run_writer, engine.lanes, engine.outbox)
        self.rollbacks = Rollbacks(context, starts)
        self.moves = BatchMoves(context, starts, self.rollbacks, engine.cancels, engine.outbox)
        self.commands = BatchCommands(context, self.moves, engine.outbox)
        self.ends = BatchEnds(context, self.moves)
        self.images = BatchImages(context)
        self.intake = BatchIntake(context, engine.outbox)
        self.queries = BatchQueries(context)
        self.retention = BatchRetention(context, self.intake)
        self.owner = BatchOwner(engine.parents, self.intake, self.moves, self.ends, self.queries)
