"""The lanes that a worker serves, by how it gets their runs: claimed freely, within limits, or assigned."""

from __future__ import annotations

from itertools import islice

from fusee.engine.model.queue import Strategy
from fusee.engine.store.own_lanes import own_lane
from fusee.engine.worker.plan import Plan, Planner
from fusee.engine.worker.work_source import WorkSource

__all__ = ["ServedLanes"]


class ServedLanes:
    """Follows the store's lanes and limits; `plans` holds how the runs of each served lane are run."""

    def __init__(self, work_source: WorkSource, planner: Planner, plans: dict[int, Plan]) -> None:
        self.work_source = work_source
        self.planner = planner
        self.plans = plans
        self.free: list[int] = []
        """Lanes that the hot statement claims from, all at once."""
        self.limited: dict[str, list[int]] = {}
        """Lanes of queues with limits, by queue; each queue is claimed from on its own."""
        self.session: int | None = None
        """The session whose own lane is served: strategies put the runs assigned to this worker there."""
        self.own_limited: tuple[str, ...] = ()
        """Queues with limits whose runs may be in the own lane, which is then claimed from separately."""
        self.may_have_assigned = False
        """Whether runs may be in the own lane. Never reset: a strategy that was lifted may have left some."""
        self.unread = False
        """Whether there are lanes that are not served yet because their queues' limits have not been read."""
        self._ruled = 0
        """How many lanes, from the first on, were known when the limits were read last."""
        self._sorted = -1

    async def read(self) -> None:
        """Read new lanes, then all limits: a queue may have got its limits just before its first run, and no
        run of it may start without them."""
        self.unread = False
        await self.work_source.read_new_lanes()
        known = len(self.work_source.lane_map.lanes)
        await self.work_source.read_limits()
        self._ruled = known
        self.sort()

    async def look_for_new(self) -> bool:
        """Read new lanes; returns whether there were any."""
        before = self._sorted
        await self.work_source.read_new_lanes()
        if len(self.work_source.lane_map.lanes) != self._ruled:
            await self.read()
        return self._sorted > before

    def notice(self) -> None:
        """This process itself may have created a lane."""
        self.unread = self.unread or len(self.work_source.lane_map.lanes) != self._ruled

    def sort(self) -> None:
        lane_map = self.work_source.lane_map
        self._sorted = self._ruled
        free: list[int] = []
        limited: dict[str, list[int]] = {}
        own_limited: set[str] = set()
        for lane_id, lane in islice(lane_map.lanes.items(), self._ruled):
            if not self.planner.serves(lane):
                continue
            if lane_id not in self.plans:
                self.plans[lane_id] = self.planner.plan(lane)
            limits = lane_map.limits.get(lane.queue)
            if lane_map.strategy_of(lane) != Strategy.SHARED:
                self.may_have_assigned = True
                if limits is not None and limits.limited:
                    own_limited.add(lane.queue)
            elif limits is None or not limits.limited:
                free.append(lane_id)
            elif not limits.paused:
                limited.setdefault(lane.queue, []).append(lane_id)
        self.own_limited = tuple(sorted(own_limited))
        if self.may_have_assigned and self.session is not None and not own_limited:
            free.append(own_lane(self.session))
        self.free, self.limited = free, limited
