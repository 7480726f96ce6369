"""Workflows as JSON objects; the same fields as the REST API has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusee.surfaces.cli.shapes import time_text

if TYPE_CHECKING:
    from fusee.workflows.model.workflow import Workflow, WorkflowSummary
    from fusee.workflows.model.workflow_run import WorkflowNode, WorkflowRun

__all__ = ["node_object", "summary_object", "workflow_object", "workflow_run_object"]


def summary_object(workflow: WorkflowSummary) -> dict[str, Any]:
    return {
        "id": workflow.id,
        "namespace": workflow.namespace,
        "name": workflow.name,
        "description": workflow.description,
        "nodes": workflow.nodes,
        "version": workflow.version,
        "created_at": time_text(workflow.created_at),
        "updated_at": time_text(workflow.updated_at),
    }


def workflow_object(workflow: Workflow) -> dict[str, Any]:
    return {**summary_object(workflow), "params": {}, **workflow.spec.to_dict()}


def workflow_run_object(run: WorkflowRun) -> dict[str, Any]:
    return {
        "id": run.id,
        "namespace": run.namespace,
        "workflow": run.workflow,
        "version": run.version,
        "status": str(run.status),
        "reason": run.reason,
        "params": dict(run.params),
        "total": run.total,
        "ended": run.ended,
        "succeeded": run.succeeded,
        "failed": run.failed,
        "skipped": run.skipped,
        "canceled": run.canceled,
        "waiter": run.waiter,
        "origin_id": run.origin_id,
        "idempotency_key": run.idempotency_key,
        "created_at": time_text(run.created_at),
        "finished_at": time_text(run.finished_at),
        "cancel_requested_at": time_text(run.cancel_requested_at),
    }


def node_object(node: WorkflowNode) -> dict[str, Any]:
    return {
        "name": node.name,
        "level": node.level,
        "after": list(node.after),
        "trigger_rule": str(node.trigger_rule),
        "run_id": node.run_id,
        "status": str(node.status),
        "attempt": node.attempt,
        "reason": node.reason,
    }
