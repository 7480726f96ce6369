"""Handlers in processes: reuse, death, and being killed with everything they started."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from fusee.broker.remote import ENVIRONMENT
from fusee.engine.model.outcome import Effect, End
from fusee.engine.worker.executor import Job
from fusee.engine.worker.handlers import Handler
from fusee.executors.python.importable import fetch, import_path_of
from fusee.executors.python.process import ProcessExecutor

# Loaded by path, under a name that no import statement finds: the child must find it all the same.
_spec = importlib.util.spec_from_file_location(
    "fusee_process_handlers", Path(__file__).parent / "process_handlers.py"
)
assert _spec is not None and _spec.loader is not None
work: Any = importlib.util.module_from_spec(_spec)
sys.modules["fusee_process_handlers"] = work
_spec.loader.exec_module(work)


@pytest.fixture
async def processes() -> AsyncIterator[ProcessExecutor]:
    executor = ProcessExecutor(1)
    yield executor
    await executor.close()


@pytest.fixture
def run(
    processes: ProcessExecutor, job: Callable[..., Job], handler: Callable[..., Handler]
) -> Callable[..., Any]:
    async def call(function: Callable[..., Any], **payload: Any) -> Any:
        return await processes.call(job(**payload), handler(function, "process"))

    return call


async def test_a_child_of_a_worker_without_a_database_cannot_open_one(
    job: Callable[..., Job], handler: Callable[..., Handler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would open fusee.db in the working folder, where nothing ever runs what it accepts."""
    monkeypatch.chdir(tmp_path)
    executor = ProcessExecutor(1, environment={ENVIRONMENT: "1"})
    try:
        ended = await executor.call(job(), handler(work.platform, "process"))
    finally:
        await executor.close()
    assert json.loads(ended.result or "").startswith("NoDatabase: ")
    assert os.listdir() == []  # noqa: PTH208


@pytest.mark.parametrize("hidden", [True, False])
async def test_a_child_is_hidden_from_programs_as_its_worker_is(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, hidden: bool
) -> None:
    """It has the worker's environment; a program that a run starts must not read it there either."""
    monkeypatch.setattr("fusee.executors.python.process.concealed", lambda: hidden)
    assert json.loads((await run(work.readable)).result) is not hidden


async def test_one_warm_child_serves_call_after_call(run: Callable[..., Any]) -> None:
    first, second = await run(work.whoami, text="zwölf"), await run(work.whoami)
    assert first.end is second.end is End.SUCCEEDED
    assert first.output == "to stdout zwölf\nto stderr\nfrom a program\n"
    result = json.loads(first.result)
    assert (result["run"], result["attempt"], result["same"]) == (7, 2, True)
    assert result["pid"] == json.loads(second.result)["pid"] != os.getpid()
    # An async handler, answers and errors, on the same child.
    assert (await run(work.later, x=1)).result == "2"
    ended = await run(work.busy)
    assert (ended.end, ended.error, ended.after) == (End.FAILED, "busy", 9)
    ended = await run(work.fail)
    assert (ended.end, ended.error.splitlines()[0]) == (End.FAILED, "KeyError: 'host'")
    ended = await run(work.later, y=1)
    assert (ended.end, ended.effect) == (End.ABANDONED, Effect.NONE)
    assert ended.error == "payload does not fit handler test(x): missing argument 'x'"
    assert (await run(work.inner_and_outer)).result == '["wrapped","inner"]'
    assert (await run(work.Box.inside)).result == '"boxed"'
    assert len((await run(work.large, size=900_000)).result) == 900_002
    assert (await run(work.large, size=2_000_000)).end is End.ABANDONED
    assert (await run(work.length, text="x" * 3_000_000)).result == "3000000"
    assert json.loads((await run(work.whoami)).result)["pid"] == result["pid"]


async def test_a_child_that_dies_is_named_and_replaced(run: Callable[..., Any]) -> None:
    ended = await run(work.segfault)
    assert (ended.end, ended.effect) == (End.FAILED, Effect.UNKNOWN)
    assert ended.error == "the handler's process died of signal SIGSEGV"
    assert "about to crash" in ended.output
    ended = await run(work.leave, code=3)
    assert ended.error == "the handler's process ended before it answered: exit code 3"


async def test_a_child_that_hangs_up_is_ended(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusee.executors.python.process.LAST_BREATH", 0.1)
    ended = await run(work.hang_up)
    assert (ended.end, ended.effect) == (End.FAILED, Effect.UNKNOWN)
    assert "closed the channel" in ended.error


async def stop(
    processes: ProcessExecutor,
    this: Job,
    handler: Handler,
    ready: Callable[[], Any],
    until: Callable[..., Any],
) -> Any:
    """Start it, wait until it is ready, cancel it; answers what `ready` saw."""
    task = asyncio.create_task(processes.call(this, handler))
    seen = await until(ready, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return seen


@pytest.mark.parametrize(
    ("name", "output", "effect"),
    [
        ("clean", "cleaned, stopping is True\n", Effect.UNKNOWN),
        ("clean_async", "cleaned\n", Effect.UNKNOWN),
        ("finish", None, Effect.APPLIED),
    ],
)
async def test_told_to_stop_it_may_clean_up(
    processes: ProcessExecutor,
    job: Callable[..., Job],
    handler: Callable[..., Handler],
    tmp_path: Path,
    pids: Callable[[int], list[int]],
    alive: Callable[[int], bool],
    until: Callable[..., Any],
    name: str,
    output: str | None,
    effect: Effect,
) -> None:
    this = job(folder=str(tmp_path), grace=30)
    (pid,) = await stop(processes, this, handler(getattr(work, name), "process"), lambda: pids(1), until)
    assert (this.output, this.effect) == (output, effect)
    assert this.stop.is_set()
    assert not alive(pid)


async def test_one_that_does_not_listen_is_killed_with_its_children(
    processes: ProcessExecutor,
    job: Callable[..., Job],
    handler: Callable[..., Handler],
    tmp_path: Path,
    pids: Callable[[int], list[int]],
    alive: Callable[[int], bool],
    until: Callable[..., Any],
) -> None:
    this = job(folder=str(tmp_path), grace=0.2)
    family = await stop(processes, this, handler(work.deaf, "process"), lambda: pids(2), until)
    assert not any(alive(pid) for pid in family)


async def test_closing_ends_the_children(
    job: Callable[..., Job], handler: Callable[..., Handler], alive: Callable[[int], bool]
) -> None:
    executor = ProcessExecutor(2)
    ended = await executor.call(job(), handler(work.whoami, "process"))
    pid = json.loads(ended.result or "")["pid"]
    assert alive(pid)
    await executor.close()
    assert not alive(pid)


async def test_children_die_with_the_worker_and_main_is_importable(
    tmp_path: Path,
    python: Callable[..., subprocess.Popen[bytes]],
    pids: Callable[[int], list[int]],
    alive: Callable[[int], bool],
    until: Callable[..., Any],
) -> None:
    """A script whose handler lives in `__main__`; then the script is killed outright."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import asyncio, os, pathlib, subprocess, time
            from fusee.engine.worker.executor import Job
            from fusee.executors.python.process import ProcessExecutor
            from fusee.engine.worker.handlers import Handlers

            def stay():
                program = "echo $$ > {tmp_path}/program.pid; exec sleep 60"
                subprocess.Popen(["sh", "-c", program])
                pathlib.Path("{tmp_path}/child.pid").write_text(f"{{os.getpid()}}\\n")
                time.sleep(60)

            async def main():
                handler = Handlers().register("stay", stay, isolation="process")
                ended = await ProcessExecutor(1).call(Job(1, 1, "stay", "q", {{}}, None, 60), handler)
                print(ended)

            if __name__ == "__main__":
                asyncio.run(main())
            """
        )
    )
    process = python(str(script))
    try:
        family = await until(lambda: pids(2), 10)
        assert all(alive(pid) for pid in family)
    finally:
        process.kill()
        process.wait()
    await until(lambda: not any(alive(pid) for pid in family))


async def test_what_cannot_be_imported_says_what_to_do(run: Callable[..., Any]) -> None:
    def local() -> None: ...

    for function, text in [
        (local, "is defined inside a function and another process cannot import it: move it to the top"),
        (lambda: None, "is a lambda"),
        (work.Box().method, "leads to something else than this function"),
    ]:
        ended = await run(function)
        assert (ended.end, ended.effect) == (End.ABANDONED, Effect.NONE)
        assert text in ended.error


def test_a_function_is_found_under_its_decorators() -> None:
    inner = work.inner_and_outer.__wrapped__
    where = import_path_of(inner)
    assert where.unwrap == 1
    assert fetch(where) is inner
    assert fetch(import_path_of(work.inner_and_outer)) is work.inner_and_outer
    with pytest.raises(ValueError, match="no name to import it by"):
        import_path_of(object())  # type: ignore[arg-type]
