"""Write docs/states.md from the transition tables and the docstrings of the models."""

from __future__ import annotations

import ast
import itertools
import sys
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path

from fusee.batches.model.batch import BATCH, BATCH_TASK, BatchPhase, BatchStatus
from fusee.bulk.model.job import BULK, BulkStatus
from fusee.bulk.model.segment import SEGMENT, SegmentState
from fusee.engine.model.states import (
    RUN,
    RUN_BIRTH,
    SESSION,
    TERMINAL,
    RunStatus,
    SessionState,
)
from fusee.tasks.model.task import TASK_STEPS, TaskStatus
from fusee.workflows.model.workflow_run import WORKFLOW_RUN_STEPS, WorkflowStatus

__all__ = ["page"]

RUN_VERBS = {
    "admit": "What it waited for has come.",
    "block": "Accepted, and has to wait for something else first.",
    "cancel": "Someone, or a policy, stopped it.",
    "claim": "A worker's session took it; the attempt number grows by one.",
    "delay": "Accepted, or let go, and due later.",
    "dispatch": "Handed to the broker.",
    "enqueue": "Accepted, due now.",
    "fail": "No attempt is left, or the handler gave up.",
    "lose": "Its worker's lease expired; the attempt counts as spent.",
    "miss": "Its time passed while nothing could fire it.",
    "promote": "Its time has come, by the database's clock.",
    "recall": "It was dispatched, and cannot start now: handed back, over a limit, or served by no worker.",
    "release": "Its worker handed it back; the attempt costs nothing.",
    "retry": "The attempt failed or timed out, and another one is allowed after a pause.",
    "skip": "A rule, or its handler, said that there is nothing to do.",
    "start": "A worker got its message, asked, and was told to start it.",
    "succeed": "The handler answered, or the callback came.",
    "time_out": "It took too long and no attempt is left.",
    "wait": "It called an outside service, which will call back.",
}
SESSION_VERBS = {
    "drain": "The worker was asked to stop: it claims nothing more.",
    "end": "The worker has nothing left and says goodbye.",
    "lose": "The lease expired; a dispatcher takes the session and returns its runs.",
}

TASK_VERBS = {
    "create": "Someone made it; made disabled, it waits to be enabled.",
    "delete": "Someone took it away; its name is free again.",
    "disable": "Someone switched it off.",
    "enable": "Someone switched it on; it fires from now on.",
    "pause": "Someone, or `failure_action PAUSE`, stopped its schedule.",
    "resume": "Someone let its schedule go on, from now on.",
}

WORKFLOW_VERBS = {
    "start": "Someone, a task or a node of another workflow started it.",
    "succeed": "Its last node ended, and none failed or was canceled.",
    "fail": "Its last node ended, and some node failed or timed out.",
    "cancel": "Its last node ended, and some node was canceled: all of it was, or that node and none failed.",
}

BATCH_VERBS = {
    "create": "Someone sends it; its targets come in portions.",
    "seal": "Its last target has come.",
    "apply": "Someone, or the run that created it, starts it.",
    "stop": "Someone, `max_errors` or the run that waits for it: no further target starts or is undone.",
    "finish": "Nothing of it is left to start, and everything that had started has ended.",
    "retry": "Someone retries targets that failed or were canceled.",
    "roll_back": "Someone, or `on_error = rollback`, undoes what was applied or may have been.",
    "discard": "Its upload was given up, its creation refused, or it is older than the retention.",
}

TARGET_VERBS = {
    "create": "It came in with its batch.",
    "acquire": "It has a run that a worker took.",
    "succeed": "The operation was applied, or was found applied; of a rollback: undone.",
    "fail": "It failed and no attempt is left; of a rollback: it could not be undone, or has drifted.",
    "give_up": "Its batch was stopped before it was tried again.",
    "resume": "Someone retries also what never started.",
    "release": "Its worker was lost, or it timed out, and another attempt is allowed.",
    "cancel": "It had not started when its batch was canceled or stopped; or it was told to stop.",
    "retry": "Someone retries what failed.",
    "roll_back": "Someone, or `on_error = rollback`, undoes what was applied or may have been.",
}

BULK_VERBS = {
    "create": "Its source was examined, and its business was asked.",
    "start": "Someone, or a task's fire, started it.",
    "refuse": "Its business refused it, or could not be asked.",
    "wait_business": "Its business said that it will start the job itself.",
    "business_start": "Its business started it.",
    "stop": "Someone, its business or the error budget stopped it; workers see it at their next checkpoint.",
    "halt": "Its last segment has ended after a stop.",
    "finish": "Every item is done or quarantined.",
    "fail": "It was stopped by its error budget, or by a segment that could not continue.",
    "resume": "Someone resumed it where it was.",
    "extend": "Someone added the items that its source has got since.",
}

SEGMENT_VERBS = {
    "create": "The job was launched or extended, or a segment gave half of its remaining items away.",
    "open": "It got a run.",
    "release": "Its run ended while items were left.",
    "finish": "A checkpoint says that its last item has ended.",
}

HEAD = """\
# States

<!-- Made by tools/document_states.py from the state tables of the models; edit the texts there. -->

Each state machine is one table, and this page is drawn from it: a step that is not here does not happen. The
database stands guard beside it with `CHECK` constraints: a run has a finish time if and only if its state is
terminal, and a running one has a session.
"""

RUN_NOTE = """\
`dispatched`: a message carries it to a worker that has no database ([broker](broker.md)).
"""


def page() -> str:
    """The whole of docs/states.md."""
    return "\n".join(
        [
            HEAD,
            "## Runs\n",
            RUN_NOTE,
            _diagram(RUN, RUN_BIRTH.items(), TERMINAL),
            _states(RunStatus, TERMINAL),
            _verbs(RUN, RUN_BIRTH, RUN_VERBS),
            "## Sessions\n",
            "A session is one life of a worker process; the lease belongs to it.\n",
            _diagram(SESSION, [("open", SessionState.ALIVE)], _last(SESSION)),
            _states(SessionState, _last(SESSION)),
            _verbs(SESSION, {"open": SessionState.ALIVE}, {"open": "A worker starts.", **SESSION_VERBS}),
            "## Tasks\n",
            "Asking for what is so already changes nothing.\n",
            _diagram(TASK_STEPS, [("create", TaskStatus.ENABLED)], _last(TASK_STEPS)),
            _states(TaskStatus, _last(TASK_STEPS)),
            _verbs(TASK_STEPS, {"create": TaskStatus.ENABLED}, TASK_VERBS),
            "## Workflow runs\n",
            "The status of a workflow run follows from how its nodes ended.\n",
            _diagram(WORKFLOW_RUN_STEPS, [("start", WorkflowStatus.RUNNING)], _last(WORKFLOW_RUN_STEPS)),
            _states(WorkflowStatus, _last(WORKFLOW_RUN_STEPS)),
            _verbs(WORKFLOW_RUN_STEPS, {"start": WorkflowStatus.RUNNING}, WORKFLOW_VERBS),
            "## Batches\n",
            "The phase of a batch is what the platform does with it; its status follows from its targets.\n",
            _diagram(BATCH, [("create", BatchPhase.UPLOADING)], _last(BATCH)),
            _states(BatchPhase, _last(BATCH)),
            _verbs(BATCH, {"create": BatchPhase.UPLOADING}, BATCH_VERBS),
            "## Targets of a batch\n",
            "A target's status follows from its runs, a batch's from its targets, in the same words.\n",
            _diagram(BATCH_TASK, [("create", BatchStatus.PENDING)], _last(BATCH_TASK)),
            _states(BatchStatus, _last(BATCH_TASK)),
            _verbs(BATCH_TASK, {"create": BatchStatus.PENDING}, TARGET_VERBS),
            "## Bulk jobs\n",
            "The business is the bulk handler with its callbacks. A resume continues where the job was.\n",
            _diagram(BULK, [("create", BulkStatus.CREATED)], _last(BULK)),
            _states(BulkStatus, _last(BULK)),
            _verbs(BULK, {"create": BulkStatus.CREATED}, BULK_VERBS),
            "## Segments of a bulk job\n",
            "A segment is a contiguous part of the items of a job; its run processes them.\n",
            _diagram(SEGMENT, [("create", SegmentState.IDLE)], _last(SEGMENT)),
            _states(SegmentState, _last(SEGMENT)),
            _verbs(SEGMENT, {"create": SegmentState.IDLE}, SEGMENT_VERBS),
        ]
    )


def _last(table: Mapping) -> frozenset:
    return frozenset(table.values()) - {state for state, _ in table}


def _diagram(table: Mapping, births: Iterable, terminal: frozenset) -> str:
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f"    [*] --> {state}: {verb}" for verb, state in births]
    lines += [f"    {before} --> {after}: {verb}" for (before, verb), after in table.items()]
    lines += [f"    {state} --> [*]" for state in sorted(terminal)]
    return "\n".join([*lines, "```", ""])


def _states(kind: type[StrEnum], terminal: frozenset) -> str:
    meanings = docstrings(kind)
    rows = ["| state | terminal | meaning |", "|---|---|---|"]
    rows += [f"| `{s}` | {'yes' if s in terminal else ''} | {meanings[s.name]} |" for s in kind]
    return "\n".join([*rows, ""])


def _verbs(table: Mapping, births: Mapping, meanings: Mapping[str, str]) -> str:
    steps: dict[str, list[str]] = {}
    for verb, after in births.items():
        steps.setdefault(verb, []).append(f"new → `{after}`")
    for (before, verb), after in table.items():
        steps.setdefault(verb, []).append(f"`{before}` → `{after}`")
    if stale := set(meanings) - set(steps):
        raise KeyError(f"the table has no verb {sorted(stale)[0]!r} any more")
    rows = ["| verb | steps | meaning |", "|---|---|---|"]
    rows += [f"| `{verb}` | {', '.join(steps[verb])} | {meanings[verb]} |" for verb in sorted(steps)]
    return "\n".join([*rows, ""])


def docstrings(kind: type[StrEnum]) -> dict[str, str]:
    """The string below each member of an enum; Python keeps them in the source alone."""
    source = Path(str(sys.modules[kind.__module__].__file__)).read_text(encoding="utf-8")
    classes = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    body = next(node.body for node in classes if node.name == kind.__name__)
    found: dict[str, str] = {}
    for member, below in itertools.pairwise(body):
        match member, below:
            case (
                ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(meaning))),
            ):
                found[name] = " ".join(meaning.split())
    return found


if __name__ == "__main__":
    target = Path(__file__).parents[1] / "docs" / "states.md"
    target.write_text(page(), encoding="utf-8")
