"""Programs: an argument vector, a clean environment, a process group of its own."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import IO, Any

from fusee.engine.model.outcome import Effect, End, Ended
from fusee.engine.worker.executor import Job
from fusee.engine.worker.results import abandoned, storable
from fusee.executors.account import Account
from fusee.executors.environment import INHERIT, SETTABLE, Settable, inherited, names_program
from fusee.executors.payload import check_fields, check_text, read_environment, run_environment
from fusee.executors.process_group import ProcessGroup, Watchdog, exit_words
from fusee.executors.tail import Tail

__all__ = ["ShellExecutor", "check_settable", "check_shell"]

FIELDS = ("argv", "cwd", "env", "ok_codes", "stdin")
QUOTED = 1000
"""Characters of the output's end that an error repeats."""

# These do not pass by themselves, unlike a full process table or disk.
LASTING = {
    errno.E2BIG,
    errno.EACCES,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOEXEC,
    errno.ENOTDIR,
    errno.EPERM,
}


class ShellExecutor:
    """Runs `payload["argv"]`; off until the configuration allows it."""

    name = "shell"

    def __init__(
        self,
        enabled: bool = False,
        allow: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        output_tail: int = 64 * 1024,
        *,
        inherit: Sequence[str] = INHERIT,
        settable: Mapping[str, str] = SETTABLE,
        account: Account | None = None,
    ) -> None:
        self._enabled = enabled
        self._allow = tuple(allow)
        self._settable = Settable(settable)
        self._account = account
        own = {} if account is None else account.environment()
        self._environment = inherited(inherit) | own | dict(environment or {})
        self._output_tail = output_tail
        self._watchdog = Watchdog()

    async def execute(self, job: Job) -> Ended:
        job.effect = Effect.NONE
        if not self._enabled:
            return abandoned("the shell executor is off: set executors.shell.enabled = true")
        try:
            check_shell(job.payload)
            executable = self._find(job.payload)
        except ValueError as error:
            return abandoned(error)
        tail = Tail(self._output_tail)
        try:
            self._watchdog.ready()  # a process of its own, whose start takes a while
            await job.may_begin()
            group = self._start(job, executable, tail)
        except OSError as error:
            end = End.ABANDONED if error.errno in LASTING else End.FAILED
            return Ended(end, error=storable(_why(error, job.payload)), effect=Effect.NONE)
        except ValueError as error:  # what the operating system's encoding cannot hold
            return abandoned(f"cannot start {job.payload['argv'][0]!r}: {error}")
        try:
            await asyncio.wait({group.exited})
            code = await group.end()
        except asyncio.CancelledError:
            await group.stop(job.grace)
            raise
        finally:
            job.output = tail.text() or None
        return _ended(code, job.payload.get("ok_codes") or [0], job.output)

    async def close(self) -> None:
        self._watchdog.close()

    def _start(self, job: Job, executable: str, tail: Tail) -> ProcessGroup:
        payload, account = job.payload, self._account
        env = self._environment | (payload.get("env") or {}) | run_environment(job)
        with ExitStack() as stack:
            stdin: IO[bytes] | None = None
            if payload.get("stdin"):
                # A file, not a pipe: a program that does not read its input cannot make us wait.
                stdin = stack.enter_context(tempfile.TemporaryFile())
                stdin.write(payload["stdin"].encode())
                stdin.seek(0)
            return ProcessGroup.start(
                payload["argv"],
                executable=executable,
                env=env | {"FUSEE_ATTEMPT": str(job.attempt)},
                cwd=payload.get("cwd") or (None if account is None else account.home),
                stdin=stdin,
                account=account,
                tail=tail,
                watchdog=self._watchdog,
            )

    def _find(self, payload: Mapping[str, Any]) -> str:
        """Return the program's file; raises a ValueError when there is none or it is not allowed."""
        program: str = payload["argv"][0]
        if "/" in program:
            found = os.path.normpath(os.path.join(payload.get("cwd") or os.getcwd(), program))  # noqa: PTH109, PTH118
        else:
            path = self._environment["PATH"]  # never the payload's: it would choose the file
            found = shutil.which(program, path=path) or ""
            if not found:
                raise ValueError(f"program {program!r} was not found on PATH ({path})")
            found = os.path.abspath(found)  # noqa: PTH100
        if self._allow and not any(names_program(entry, program, found) for entry in self._allow):
            raise ValueError(
                f"program {program!r} is not allowed here: executors.shell.allow has {', '.join(self._allow)}"
            )
        self._settable.check(program, found, payload.get("env") or ())
        return found


def check_settable(payload: Mapping[str, Any], settable: Mapping[str, str]) -> None:
    """Refuse, with a ValueError, an `env` that no worker with this setting would take."""
    program: str = payload["argv"][0]
    cwd = payload.get("cwd")
    found = None
    if "/" in program and (cwd or program.startswith("/")):
        found = os.path.normpath(os.path.join(cwd or "/", program))  # noqa: PTH118
    Settable(settable).check(program, found, payload.get("env") or ())


def check_shell(payload: Mapping[str, Any]) -> None:
    """Refuse, with a ValueError that says why, a payload that could never run."""
    check_fields(payload, "a shell payload", FIELDS, "argv", '{"argv": ["program", "argument"]}')
    argv = payload["argv"]
    if isinstance(argv, str):
        raise ValueError(
            'argv is a list, not a command line: ["program", "argument"];'
            ' if a shell is what you want, ["sh", "-c", "…"]'
        )
    if not isinstance(argv, list | tuple) or not argv:
        raise ValueError("argv must be a list of texts, the program first")
    for at, part in enumerate(argv):
        check_text(part, f"argv[{at}]")
    if not argv[0]:
        raise ValueError("argv[0] is empty: it names the program")
    read_environment(payload.get("env"), lambda name: name and "=" not in name and "\x00" not in name)
    if (cwd := payload.get("cwd")) is not None:
        check_text(cwd, "cwd")
        if not cwd.startswith("/"):
            raise ValueError(f"cwd must be an absolute path, not {cwd!r:.100}")
    if (stdin := payload.get("stdin")) is not None and not isinstance(stdin, str):
        raise ValueError("stdin must be text")
    codes = payload.get("ok_codes")
    if codes is not None and not (
        isinstance(codes, list | tuple)
        and codes
        and all(type(code) is int and 0 <= code <= 255 for code in codes)
    ):
        raise ValueError("ok_codes must be a list of exit codes from 0 to 255, such as [0, 3]")


def _why(error: OSError, payload: Mapping[str, Any]) -> str:
    program, cwd = payload["argv"][0], payload.get("cwd")
    if cwd is not None and error.filename == cwd:
        return f"cannot enter cwd {cwd!r}: {error.strerror}"
    match error.errno:
        case errno.ENOENT:
            return f"program {program!r} was not found (or its #! line names one that is not there)"
        case errno.EACCES:
            return f"program {program!r} is not executable: chmod +x, or call it through its interpreter"
        case errno.ENOEXEC:
            return f"program {program!r} is no program for this machine; a script needs a #! line"
        case errno.E2BIG:
            return "argv and env are too long together: pass the data in stdin or a file"
        case _:
            return f"cannot start {program!r}: {error.strerror or error}"


def _ended(code: int | None, ok_codes: Sequence[int], output: str | None) -> Ended:
    if code is not None and code in ok_codes:
        return Ended(End.SUCCEEDED, result=f'{{"exit_code":{code}}}', output=output, effect=Effect.APPLIED)
    error = exit_words(code)
    if output and (last := output.strip()[-QUOTED:]):
        error += f"\n{last}"
    result = None if code is None or code < 0 else f'{{"exit_code":{code}}}'
    return Ended(End.FAILED, result=result, error=error, output=output)
