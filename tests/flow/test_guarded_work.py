"""What callers cannot make a worker do, over REST and the command line."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from fusee.surfaces.cli.exits import Exit
from tests.chaos.inside import until
from tests.flow.conftest import Cli, Served

RUNS, JOBS = "/api/v1/runs", "/api/v1/bulk-jobs"
QUICK = {"poll_interval": "50ms"}


async def ended(served: Served, **run: Any) -> Any:
    status, accepted, _ = await served.ask("POST", RUNS, json=run)
    assert status == 201, accepted
    _, shown, _ = await served.ask("GET", f"{RUNS}/{accepted['id']}/wait?timeout=20")
    return shown


async def test_a_program_gets_only_what_is_listed(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEE_DATABASE__URL", "postgresql://canary@db/fusee")
    shell: dict[str, Any] = {"enabled": True, "settable": {"*": "JOB_*", "env": "PGHOST"}}
    if os.geteuid() == 0:
        shell["user"] = "nobody"
    async with serving(working=True, worker=QUICK, executors={"shell": shell}) as served:
        env = {"JOB_DAY": "monday", "PGHOST": "db"}
        run = await ended(served, executor="shell", payload={"argv": ["env"], "env": env})
        lines = run["output"].split()
        assert {"JOB_DAY=monday", "PGHOST=db"} <= set(lines)
        assert "canary" not in run["output"]
        assert os.geteuid() != 0 or "USER=nobody" in lines
        for argv, name in ((["sh", "-c", "true"], "PGHOST"), (["env"], "PERL5OPT"), (["env"], "LD_PRELOAD")):
            body = {"executor": "shell", "payload": {"argv": argv, "env": {name: "x"}}}
            for path, more in ((RUNS, {}), ("/api/v1/tasks", {"name": "t"})):
                status, problem, _ = await served.ask("POST", path, json={**body, **more})
                assert status == 422, (path, problem)
                assert f"env may not set '{name}' for '{argv[0]}'" in problem["detail"]
                assert "executors.shell.settable" in problem["detail"]


def test_a_program_gets_only_what_is_listed_over_the_command_line(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEE_EXECUTORS__SHELL__ENABLED", "true")
    cli.text("db", "upgrade")
    file = tmp_path / "tasks.yaml"
    payload = "{argv: [git, log], env: {GIT_PAGER: x}}"
    file.write_text(f"tasks:\n  - {{name: t, every: 60, executor: shell, payload: {payload}}}\n")
    words = ("task", "apply", str(file))
    assert "env may not set 'GIT_PAGER' for 'git'" in cli.refused(*words)
    monkeypatch.setenv("FUSEE_EXECUTORS__SHELL__SETTABLE__git", "GIT_PAGER")
    cli.text(*words)
    monkeypatch.setenv("FUSEE_EXECUTORS__SHELL__SETTABLE__git", "GIT_*")
    assert "write the names one by one" in cli.refused("run", "list", code=Exit.FAILED)


async def test_a_function_has_no_dot_after_the_colon(served: Served) -> None:
    body = {"executor": "dask", "payload": {"function": "shop.jobs:os.system", "kwargs": {"command": "id"}}}
    status, problem, _ = await served.ask("POST", RUNS, json=body)
    assert (status, await served.count()) == (422, 0)
    assert "no dot after the colon" in problem["detail"]


async def test_no_image_is_allowed_that_is_not_listed(serving: Any, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    kubernetes = {"enabled": True, "server": "https://127.0.0.1:9", "token_file": str(tmp_path / "token")}
    async with serving(working=True, worker=QUICK, executors={"kubernetes": kubernetes}) as served:
        run = await ended(served, executor="kubernetes", payload={"image": "evil/miner:1"})
    assert (run["status"], run["effect"]) == ("failed", "none")
    assert "executors.kubernetes.images has nothing; add the image" in run["error"]


async def test_a_file_that_is_swapped_after_its_job_was_created_is_not_read(
    serving: Any, tmp_path: Path
) -> None:
    folder, seen = tmp_path / "open", list[str]()
    folder.mkdir()
    (folder / "users.txt").write_text("ada\n")
    (tmp_path / "secret.txt").write_text("key\n")
    async with serving(worker=QUICK, executors={"bulk": {"folders": [str(folder)]}}) as served:

        @served.app.bulk("mail")
        async def mail(item: str) -> None:
            seen.append(item)

        async with served.app.running():
            source = {"kind": "file", "path": str(folder / "users.txt"), "within": "/"}
            body = {"name": "m", "business": "mail", "source": source}
            status, job, _ = await served.ask("POST", JOBS, json=body)
            assert (status, job["source"]["within"]) == (201, str(folder))
            (folder / "users.txt").unlink()
            (folder / "users.txt").symlink_to(tmp_path / "secret.txt")
            await served.ask("POST", f"{JOBS}/{job['id']}/start")

            async def stopped() -> Any:
                _, shown, _ = await served.ask("GET", f"{JOBS}/{job['id']}")
                return shown if shown["status"] in ("stopped", "failed", "finished") else None

            shown = await until(stopped, 20, "the job to stop")
    assert "leads out of" in shown["reason"]
    assert seen == []


def bomb(folder: Path) -> Path:
    path = folder / "bomb.txt.gz"
    with gzip.open(path, "wb") as file:
        for _ in range(50):
            file.write(bytes(2**20))
    return path


async def test_a_bomb_is_refused_over_rest(serving: Any, tmp_path: Path) -> None:
    async with serving(executors={"bulk": {"folders": [str(tmp_path)]}}) as served:
        served.app.bulk("mail")(lambda item: None)
        source = {"kind": "file", "path": str(bomb(tmp_path))}
        body = {"name": "m", "business": "mail", "source": source}
        status, problem, _ = await served.ask("POST", JOBS, json=body)
    assert status == 422
    assert "raise executors.bulk.max_record" in problem["detail"]
