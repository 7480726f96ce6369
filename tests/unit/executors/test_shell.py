"""Programs: what they get, how they end, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from fusee.engine.model.outcome import Effect, End
from fusee.engine.worker.executor import Job
from fusee.executors.shell import ShellExecutor, check_shell


@pytest.fixture
async def shell() -> AsyncIterator[ShellExecutor]:
    executor = ShellExecutor(enabled=True, environment={"SITE": "north"}, output_tail=2000)
    yield executor
    await executor.close()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def sh(script: str) -> list[str]:
    return ["sh", "-c", textwrap.dedent(script)]


# --- what a program gets -----------------------------------------------------------------------------


async def test_a_program_succeeds(shell: ShellExecutor, job: Callable[..., Job]) -> None:
    this = job(argv=["echo", "hello {{run_id}}", "$HOME"])
    ended = await shell.execute(this)
    assert (ended.end, ended.result, ended.effect) == (End.SUCCEEDED, '{"exit_code":0}', Effect.APPLIED)
    assert ended.output == this.output == "hello {{run_id}} $HOME\n"


async def test_the_environment_is_clean(
    shell: ShellExecutor, job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEE_DATABASE__URL", "secret")
    ended = await shell.execute(job(argv=["env"], env={"JOB_MINE": "1"}))
    seen = dict(line.partition("=")[::2] for line in (ended.output or "").splitlines())
    assert "FUSEE_DATABASE__URL" not in seen
    assert seen["SITE"] == "north"
    assert seen["JOB_MINE"] == "1"
    assert seen["FUSEE_RUN_ID"] == "7"
    assert seen["FUSEE_ATTEMPT"] == "2"
    assert seen["FUSEE_IDEMPOTENCY_KEY"] == "fusee-run-7"
    allowed = {"HOME", "LANG", "LC_ALL", "PATH", "TMPDIR", "TZ", "SITE", "JOB_MINE"}
    assert {name for name in seen if not name.startswith("FUSEE_")} <= allowed


async def test_stdin_cwd_and_ok_codes(shell: ShellExecutor, job: Callable[..., Job], tmp_path: Path) -> None:
    argv = sh("pwd; cat; exit 3")
    ended = await shell.execute(job(argv=argv, stdin="zwölf", cwd=str(tmp_path), ok_codes=[0, 3]))
    assert (ended.end, ended.result) == (End.SUCCEEDED, '{"exit_code":3}')
    assert ended.output == f"{tmp_path}\nzwölf"


async def test_input_that_nobody_reads_does_no_harm(shell: ShellExecutor, job: Callable[..., Job]) -> None:
    assert (await shell.execute(job(argv=["true"], stdin="x" * 1_000_000))).end is End.SUCCEEDED


async def test_output_is_merged_and_bounded(shell: ShellExecutor, job: Callable[..., Job]) -> None:
    ended = await shell.execute(job(argv=sh("echo out; echo err >&2")))
    assert ended.output == "out\nerr\n"
    ended = await shell.execute(job(argv=sh("head -c 3000000 /dev/zero | tr '\\0' x; echo end")))
    assert (ended.output or "").startswith("… 2998004 bytes dropped …\nxxx")
    assert (ended.output or "").endswith("xend\n")


# --- how it ends -------------------------------------------------------------------------------------


async def test_an_exit_code_is_a_failure_with_its_last_words(
    shell: ShellExecutor, job: Callable[..., Job]
) -> None:
    ended = await shell.execute(job(argv=sh("echo disk full; exit 3")))
    assert (ended.end, ended.error) == (End.FAILED, "exit code 3\ndisk full")
    assert (ended.effect, ended.result) == (Effect.UNKNOWN, '{"exit_code":3}')


async def test_a_signal_is_named(shell: ShellExecutor, job: Callable[..., Job]) -> None:
    ended = await shell.execute(job(argv=sh("kill -KILL $$")))
    assert (ended.end, ended.error) == (End.FAILED, "killed by signal SIGKILL")


async def test_what_can_never_run_is_abandoned(
    shell: ShellExecutor, job: Callable[..., Job], tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    plain.write_text("echo hi")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\x00\x01")
    binary.chmod(0o755)
    for payload, text in [
        ({"argv": ["no-such-program"]}, "'no-such-program' was not found on PATH"),
        ({"argv": ["/no/such/program"]}, "was not found (or its #! line"),
        ({"argv": [str(plain)]}, "is not executable: chmod +x"),
        ({"argv": [str(binary)]}, "a script needs a #! line"),
        ({"argv": ["true"], "cwd": "/no/such/place"}, "cannot enter cwd '/no/such/place'"),
        ({"argv": "ls -l"}, "argv is a list, not a command line"),
        ({"argv": ["echo", "x" * 3_000_000]}, "too long together"),
    ]:
        ended = await shell.execute(job(**payload))
        assert (ended.end, ended.effect) == (End.ABANDONED, Effect.NONE), payload
        assert text in (ended.error or "")


async def test_it_is_off_by_default(job: Callable[..., Job]) -> None:
    ended = await ShellExecutor().execute(job(argv=["true"]))
    assert ended.end is End.ABANDONED
    assert ended.error == "the shell executor is off: set executors.shell.enabled = true"


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ({}, "a shell payload is an object such as"),
        ({"argv": []}, "argv must be a list of texts"),
        ({"argv": [""]}, "argv[0] is empty"),
        ({"argv": ["a", 1]}, "argv[1] must be text, not 1"),
        ({"argv": ["a\x00"]}, "NUL character"),
        ({"argv": ["a"], "shell": True}, "has no 'shell'; it has argv, cwd, env"),
        ({"argv": ["a"], "env": {"A=B": "c"}}, "no name of a variable"),
        ({"argv": ["a"], "env": {"A": 1}}, "env.A must be text"),
        ({"argv": ["a"], "env": []}, "env must be an object"),
        ({"argv": ["a"], "cwd": "here"}, "absolute path"),
        ({"argv": ["a"], "stdin": 3}, "stdin must be text"),
        ({"argv": ["a"], "ok_codes": [256]}, "exit codes from 0 to 255"),
        ({"argv": ["a"], "ok_codes": []}, "exit codes from 0 to 255"),
    ],
)
def test_a_wrong_payload_is_refused_with_a_reason(payload: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as refusal:
        check_shell(payload)
    assert text in str(refusal.value)


# --- the allow-list ----------------------------------------------------------------------------------


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    for name in ("in/one", "out"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("#!/bin/sh\necho ran $0\n")
        file.chmod(0o755)
    return tmp_path


async def test_only_what_is_allowed_runs(job: Callable[..., Job], jobs: Path) -> None:
    executor = ShellExecutor(enabled=True, allow=["echo", f"{jobs}/in/", f"{jobs}/exact"])
    verdicts = {}
    for program in ("echo", "/bin/echo", "ls", f"{jobs}/in/one", f"{jobs}/in/../out", f"{jobs}/out"):
        ended = await executor.execute(job(argv=[program]))
        verdicts[program.removeprefix(str(jobs))] = ended.end
        if ended.end is End.ABANDONED:
            assert "executors.shell.allow has echo" in (ended.error or "")
    assert verdicts == {
        "echo": End.SUCCEEDED,
        "/bin/echo": End.ABANDONED,
        "ls": End.ABANDONED,
        "/in/one": End.SUCCEEDED,
        "/in/../out": End.ABANDONED,
        "/out": End.ABANDONED,
    }
    await executor.close()


async def test_run_variables_cannot_be_forged(job: Callable[..., Job]) -> None:
    """Also where an operator allows the name."""
    executor = ShellExecutor(enabled=True, settable={"env": "FUSEE_RUN_ID FUSEE_ATTEMPT"})
    ended = await executor.execute(job(argv=["env"], env={"FUSEE_RUN_ID": "forged", "FUSEE_ATTEMPT": "99"}))
    await executor.close()
    assert "FUSEE_RUN_ID=7\n" in (ended.output or "")
    assert "FUSEE_ATTEMPT=2\n" in (ended.output or "")


async def test_a_payload_never_chooses_where_programs_are_found(job: Callable[..., Job], jobs: Path) -> None:
    executor = ShellExecutor(enabled=True, settable={"*": "PATH"})
    ended = await executor.execute(job(argv=["out"], env={"PATH": str(jobs)}))
    assert ended.end is End.ABANDONED and "'out' was not found on PATH" in (ended.error or "")


# --- stopping ----------------------------------------------------------------------------------------

DEAF_FAMILY = """
    trap '' TERM
    echo $$ > {0}/leader.pid
    sh -c 'trap "" TERM; echo $$ > {0}/child.pid; sh -c "echo \\$\\$ > {0}/grandchild.pid; exec sleep 60"' &
    echo started
    while :; do sleep 0.1; done
"""


async def test_a_deaf_family_is_killed_to_the_last(
    shell: ShellExecutor,
    job: Callable[..., Job],
    tmp_path: Path,
    pids: Callable[[int], list[int]],
    alive: Callable[[int], bool],
    until: Callable[..., Any],
) -> None:
    this = job(argv=sh(DEAF_FAMILY.format(tmp_path)), grace=0.2)
    task = asyncio.create_task(shell.execute(this))
    family = await until(lambda: pids(3))
    assert all(alive(pid) for pid in family)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(alive(pid) for pid in family)
    assert this.output == "started\n"
    assert this.effect is Effect.UNKNOWN


async def test_cancelled_again_it_kills_at_once(
    shell: ShellExecutor,
    job: Callable[..., Job],
    tmp_path: Path,
    pids: Callable[[int], list[int]],
    alive: Callable[[int], bool],
    until: Callable[..., Any],
) -> None:
    task = asyncio.create_task(shell.execute(job(argv=sh(DEAF_FAMILY.format(tmp_path)), grace=60)))
    family = await until(lambda: pids(3))
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    begun = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - begun < 5
    assert not any(alive(pid) for pid in family)


async def test_one_that_listens_may_clean_up(
    shell: ShellExecutor, job: Callable[..., Job], tmp_path: Path, until: Callable[..., Any]
) -> None:
    script = f"""
        trap 'echo cleaned; exit 0' TERM
        echo x > {tmp_path}/ready
        while :; do sleep 0.02; done
    """
    this = job(argv=sh(script), grace=30)
    task = asyncio.create_task(shell.execute(this))
    await until((tmp_path / "ready").exists)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (this.output or "").endswith("cleaned\n")  # the shell may report its own child first


async def test_what_a_program_leaves_behind_is_killed(
    shell: ShellExecutor,
    job: Callable[..., Job],
    tmp_path: Path,
    pids: Callable[[int], list[int]],
    alive: Callable[[int], bool],
) -> None:
    """The leader has exited; its child holds the output open and would run for a minute."""
    script = f"""
        sh -c 'trap "" TERM; echo $$ > {tmp_path}/left.pid; exec sleep 60' &
        while [ ! -s {tmp_path}/left.pid ]; do sleep 0.01; done
        echo done
    """
    ended = await asyncio.wait_for(shell.execute(job(argv=sh(script))), 10)
    assert (ended.end, ended.output) == (End.SUCCEEDED, "done\n")
    assert not alive(pids(1)[0])


async def test_an_escaped_program_that_holds_the_output_does_not_hold_us(
    shell: ShellExecutor, job: Callable[..., Job], tmp_path: Path, pids: Callable[[int], list[int]]
) -> None:
    code = f"""
        import os, pathlib, time
        if os.fork() == 0:
            os.setsid()
            file = pathlib.Path("{tmp_path}/escaped.pid")
            file.write_text(str(os.getpid()) + "\\n")
            time.sleep(60)
        while not pathlib.Path("{tmp_path}/escaped.pid").exists():
            time.sleep(0.01)
        print("done", flush=True)
        os._exit(0)
    """
    argv = [sys.executable, "-I", "-S", "-c", textwrap.dedent(code)]
    ended = await asyncio.wait_for(shell.execute(job(argv=argv)), 10)
    assert (ended.end, ended.output) == (End.SUCCEEDED, "done\n")
    os.kill(pids(1)[0], signal.SIGKILL)


async def test_a_worker_that_is_killed_takes_the_whole_group_along(
    tmp_path: Path,
    python: Callable[..., subprocess.Popen[bytes]],
    pids: Callable[[int], list[int]],
    alive: Callable[[int], bool],
    until: Callable[..., Any],
) -> None:
    worker = f"""
        import asyncio, json
        from fusee.engine.worker.executor import Job
        from fusee.executors.shell import ShellExecutor

        async def main():
            argv = json.loads({json.dumps(json.dumps(sh(DEAF_FAMILY.format(tmp_path))))})
            await ShellExecutor(enabled=True).execute(Job(1, 1, "t", "q", {{"argv": argv}}, None, 60))

        asyncio.run(main())
    """
    process = python("-c", textwrap.dedent(worker))
    try:
        family = await until(lambda: pids(3), 10)
    finally:
        process.kill()
        process.wait()
    await until(lambda: not any(alive(pid) for pid in family))


async def test_many_at_once_leave_no_file_open(shell: ShellExecutor, job: Callable[..., Job]) -> None:
    await shell.execute(job(argv=["true"]))
    before = open_files()
    ends = await asyncio.gather(*(shell.execute(job(argv=["true"])) for _ in range(20)))
    assert {ended.end for ended in ends} == {End.SUCCEEDED}
    assert open_files() == before


async def test_a_dead_watchdog_is_replaced(shell: ShellExecutor, job: Callable[..., Job]) -> None:
    await shell.execute(job(argv=["true"]))
    process = shell._watchdog._process
    assert process is not None
    process.kill()
    process.wait()
    assert (await shell.execute(job(argv=["true"]))).end is End.SUCCEEDED
    assert shell._watchdog._process is not None
    assert shell._watchdog._process.pid != process.pid
