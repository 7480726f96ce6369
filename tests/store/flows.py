"""Short ways to say what happens to a workflow run, for the tests of the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, select

from fusee.engine.model.gate import TriggerRule
from fusee.engine.model.outcome import End
from fusee.engine.model.retry import RetryPolicy
from fusee.engine.model.run import Claimed
from fusee.engine.store.tables import gates, outbox
from fusee.values.params import Param
from fusee.workflows.model.workflow import NodeSpec, WorkflowSpec
from fusee.workflows.model.workflow_run import WorkflowRun
from fusee.workflows.store.tables import edges
from tests.store.harness import World

ONCE = RetryPolicy(max_attempts=1)


def node(name: str, *after: str, rule: str = "all_success", **fields: Any) -> NodeSpec:
    if "task" not in fields and "workflow" not in fields:
        fields.setdefault("handler", "work")
    return NodeSpec(name=name, after=after, trigger_rule=TriggerRule(rule), **fields)


def workflow(*nodes: NodeSpec, name: str = "nightly", **params: Any) -> WorkflowSpec:
    return WorkflowSpec(name=name, nodes=nodes, params={n: Param(v) for n, v in params.items()})


DIAMOND = (
    node("extract"),
    node("clean", "extract"),
    node("check", "extract"),
    node("load", "clean", "check"),
)


class Flow:
    """A workflow run in a world, with a session that executes its nodes by name."""

    def __init__(self, world: World, session: int, workflow_run_id: int) -> None:
        self.world = world
        self.session = session
        self.id = workflow_run_id
        self.held: dict[int, Claimed] = {}

    @classmethod
    async def start(cls, world: World, *nodes: NodeSpec, name: str = "nightly") -> Flow:
        await world.store.workflows.definitions.create_workflow(workflow(*nodes, name=name))
        started = await world.store.workflows.starts.start_workflow(name)
        return cls(world, await world.session(ttl=36_000), started.id)

    async def look(self) -> WorkflowRun:
        return await self.world.store.workflows.queries.workflow_run(self.id)

    async def nodes(self) -> dict[str, str]:
        page = await self.world.store.workflows.queries.workflow_graph(self.id, limit=100_000)
        return {node.name: str(node.status) for node in page.nodes}

    async def run_ids(self) -> dict[str, int]:
        page = await self.world.store.workflows.queries.workflow_graph(self.id, limit=100_000)
        return {node.name: node.run_id for node in page.nodes}

    async def reasons(self) -> dict[str, str | None]:
        page = await self.world.store.workflows.queries.workflow_graph(self.id, limit=100_000)
        return {node.name: node.reason for node in page.nodes}

    async def claim(self) -> list[str]:
        """Take whatever may start; answers which nodes that were."""
        claimed = await self.world.claim(self.session)
        self.held |= {run.id: run for run in claimed}
        names = {run_id: name for name, run_id in (await self.run_ids()).items()}
        return sorted(names[run.id] for run in claimed)

    async def finish(self, *names: str) -> None:
        await self.world.finish(self.session, *await self._take(names))
        await self.drain()

    async def end(self, *names: str, end: End = End.FAILED) -> None:
        await self.world.settle(self.session, *await self._take(names), end=end, policy=ONCE)
        await self.drain()

    async def _take(self, names: Iterable[str]) -> list[Claimed]:
        ids = await self.run_ids()
        missing = [name for name in names if ids[name] not in self.held]
        assert not missing, f"{missing} have not started"
        return [self.held.pop(ids[name]) for name in names]

    async def drain(self) -> None:
        while await self.world.store.aggregation.aggregate():
            pass


async def notices(world: World) -> list[tuple[str, int]]:
    return [(row.kind, row.run_id) for row in await world.rows(outbox)]


async def leftovers(world: World) -> Mapping[str, int]:
    """What an ended workflow run must not leave behind."""

    def work(connection: Connection) -> dict[str, int]:
        return {t.name: len(connection.execute(select(t)).all()) for t in (edges, gates, outbox)}

    return await world.store.database.read(work)


NOTHING = {"fusee_edges": 0, "fusee_gates": 0, "fusee_outbox": 0}
