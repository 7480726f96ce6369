"""Every TOML, YAML and JSON block of README and docs is read by what would read it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusee.config import load
from fusee.executors.dask.payload import check_dask
from fusee.executors.http.executor import check_http
from fusee.executors.kubernetes.manifest import check_kubernetes
from fusee.executors.shell import check_shell
from fusee.runs.fields import spec_from
from tests.flow.conftest import Cli, Served
from tests.flow.test_pages_run import PAGES, Block, blocks


def every(language: str) -> list[Any]:
    found = [block for page in PAGES for block in blocks(page, language)]
    return [pytest.param(block, id=f"{block.page}:{block.line}") for block in found]


@pytest.mark.parametrize("block", every("toml"))
def test_a_configuration_is_understood(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "fusee.toml"
    file.write_text(block.code, encoding="utf-8")
    load(file, env={})


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "yaml")])
def test_files_of_tasks_and_workflows_are_accepted(page: str, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "fusee.toml").write_text("[executors.shell]\nenabled = true\n", encoding="utf-8")
    cli.text("db", "upgrade")
    for nr, block in enumerate(blocks(page, "yaml")):
        file = tmp_path / f"{nr}.yaml"
        file.write_text(block.code, encoding="utf-8")
        if "nodes:" in block.code:
            cli.text("workflow", "apply", str(file), "--allow-unknown")
        elif block.code.startswith("templates:"):
            cli.text("template", "apply", str(file))
        else:
            cli.text("task", "apply", str(file), "--allow-unknown", "--dry-run")


RUN: dict[str, Callable[[dict[str, Any]], object]] = {
    "shell": check_shell,
    "http": check_http,
    "kubernetes": check_kubernetes,
    "dask": check_dask,
}
TOLD = {"docs/bulk.md", "docs/policies/alerts.md", "docs/cdc.md"}
"""Pages that show what a service is sent or answers; the tests of those compare it."""


@pytest.mark.parametrize("block", every("json"))
async def test_a_request_is_accepted(block: Block, served: Served) -> None:
    shown = json.loads(block.code)
    if block.page in TOLD:
        return
    if shown.get("type", "").startswith("urn:fusee:problem:"):
        asked = {"handler": "greet", shown["field"]: 1}
        status, said, _ = await served.ask("POST", "/api/v1/runs", json=asked)
        assert (status, {**said, "request_id": "…"}) == (shown["status"], {**shown, "request_id": "…"})
    elif "executor" in shown:
        RUN[shown["executor"]](dict(spec_from(shown).payload or {}))
    else:
        RUN["shell" if "argv" in shown else "http"](shown)
