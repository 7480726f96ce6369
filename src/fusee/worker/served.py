"""Which lanes a worker serves, apart by how it gets their runs: taken freely, within limits, or given."""

from __future__ import annotations

from fusee.broker import Depot
from fusee.model.strategy import Strategy
from fusee.store import own_lane
from fusee.worker.plan import Plan, Planner

__all__ = ["ServedLanes"]


class ServedLanes:
    """Follows the store's lanes and limits; `plans` says how each served lane is run."""

    def __init__(self, depot: Depot, planner: Planner, plans: dict[int, Plan]) -> None:
        self.depot = depot
        self.planner = planner
        self.plans = plans
        self.free: list[int] = []
        """Claimed by the hot statement, all in one."""
        self.limited: dict[str, list[int]] = {}
        """By queue; each queue is claimed from on its own."""
        self.session: int | None = None
        """Whose own lane is served: that of what strategies give to this worker."""
        self.own_limited: tuple[str, ...] = ()
        """Queues with limits whose runs may be in the own lane: it is then claimed from apart."""
        self.given = False
        """Runs may stand in the own lane. Once so, always so: a lifted strategy may have left some."""
        self._sorted = -1

    async def read(self) -> None:
        """Ask the store for new lanes and for all limits."""
        await self.depot.read_new_lanes()
        await self.depot.read_limits()
        self.sort()

    async def look_for_new(self) -> bool:
        """True when there was a lane we did not know."""
        await self.depot.read_new_lanes()
        return self.sort()

    def notice(self) -> None:
        """This process itself may have made a new one."""
        if len(self.depot.lane_map.lanes) != self._sorted:
            self.sort()

    def sort(self) -> bool:
        lane_map = self.depot.lane_map
        before, self._sorted = self._sorted, len(lane_map.lanes)
        free: list[int] = []
        limited: dict[str, list[int]] = {}
        own_limited: set[str] = set()
        for lane_id, lane in lane_map.lanes.items():
            if not self.planner.serves(lane):
                continue
            if lane_id not in self.plans:
                self.plans[lane_id] = self.planner.plan(lane)
            limits = lane_map.limits.get(lane.queue)
            if lane_map.strategy_of(lane) != Strategy.SHARED:
                self.given = True
                if limits is not None and limits.limited:
                    own_limited.add(lane.queue)
            elif limits is None or not limits.limited:
                free.append(lane_id)
            elif not limits.paused:
                limited.setdefault(lane.queue, []).append(lane_id)
        self.own_limited = tuple(sorted(own_limited))
        if self.given and self.session is not None and not own_limited:
            free.append(own_lane(self.session))
        self.free, self.limited = free, limited
        return self._sorted > before
