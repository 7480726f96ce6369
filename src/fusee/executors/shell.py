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
from fusee.engine.worker.results import storable
from fusee.executors.process_group import Group, Warden, died_of
from fusee.executors.tail import Tail

__all__ = ["ShellExecutor", "check_shell"]

FIELDS = ("argv", "cwd", "env", "ok_codes", "stdin")
INHERITED = ("HOME", "LANG", "LC_ALL", "PATH", "TMPDIR", "TZ")
"""All that a program gets of the worker's environment, which may hold the database's password."""
QUOTED = 1000
"""Characters of the output's end that an error repeats."""

# A missing program does not come by itself; a full process table or disk passes.
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
    ) -> None:
        self._enabled = enabled
        self._allow = tuple(allow)
        self._environment = _base_environment() | dict(environment or {})
        self._output_tail = output_tail
        self._warden = Warden()

    async def execute(self, job: Job) -> Ended:
        job.effect = Effect.NONE
        if not self._enabled:
            return _refused("the shell executor is off: set executors.shell.enabled = true")
        try:
            check_shell(job.payload)
            executable = self._find(job.payload)
        except ValueError as error:
            return _refused(str(error))
        tail = Tail(self._output_tail)
        try:
            self._warden.ready()  # a process of its own, whose start takes a while
            await job.may_begin()
            group = self._start(job, executable, tail)
        except OSError as error:
            text = _why(error, job.payload)
            end = End.ABANDONED if error.errno in LASTING else End.FAILED
            return Ended(end, error=storable(text), effect=Effect.NONE)
        except ValueError as error:  # what the operating system's encoding cannot hold
            return _refused(f"cannot start {job.payload['argv'][0]!r}: {error}")
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
        self._warden.close()

    def _start(self, job: Job, executable: str, tail: Tail) -> Group:
        payload = job.payload
        with ExitStack() as stack:
            stdin: IO[bytes] | None = None
            if payload.get("stdin"):
                # A file, not a pipe: a program that does not read its input cannot make us wait.
                stdin = stack.enter_context(tempfile.TemporaryFile())
                stdin.write(payload["stdin"].encode())
                stdin.seek(0)
            return Group.start(
                payload["argv"],
                executable=executable,
                env=self._environment | (payload.get("env") or {}) | _identity(job),
                cwd=payload.get("cwd"),
                stdin=stdin,
                tail=tail,
                warden=self._warden,
            )

    def _find(self, payload: Mapping[str, Any]) -> str:
        """The program's file; a ValueError when there is none or the configuration does not allow it."""
        program: str = payload["argv"][0]
        env: Mapping[str, str] = payload.get("env") or {}
        if self._allow and (taken := [name for name in env if _steers(name)]):
            raise ValueError(
                f"env may not set {taken[0]!r} while executors.shell.allow is in force:"
                " it could make an allowed program run another"
            )
        if "/" in program:
            found = os.path.normpath(os.path.join(payload.get("cwd") or os.getcwd(), program))  # noqa: PTH109, PTH118
        else:
            path = env.get("PATH", self._environment["PATH"])
            found = shutil.which(program, path=path) or ""
            if not found:
                raise ValueError(f"program {program!r} was not found on PATH ({path})")
            found = os.path.abspath(found)  # noqa: PTH100
        if self._allow and not any(_allows(entry, program, found) for entry in self._allow):
            raise ValueError(
                f"program {program!r} is not allowed here: executors.shell.allow has {', '.join(self._allow)}"
            )
        return found


def check_shell(payload: Mapping[str, Any]) -> None:
    """Refuse, with a ValueError that says why, a payload that could never run."""
    if not isinstance(payload, Mapping) or "argv" not in payload:
        raise ValueError('a shell payload is an object such as {"argv": ["program", "argument"]}')
    if unknown := sorted(set(payload) - set(FIELDS)):
        raise ValueError(f"a shell payload has no {unknown[0]!r}; it has {', '.join(FIELDS)}")
    argv = payload["argv"]
    if isinstance(argv, str):
        raise ValueError(
            'argv is a list, not a command line: ["program", "argument"];'
            ' if a shell is what you want, ["sh", "-c", "…"]'
        )
    if not isinstance(argv, list | tuple) or not argv:
        raise ValueError("argv must be a list of texts, the program first")
    for at, part in enumerate(argv):
        _check_text(part, f"argv[{at}]")
    if not argv[0]:
        raise ValueError("argv[0] is empty: it names the program")
    _check_env(payload.get("env"))
    if (cwd := payload.get("cwd")) is not None:
        _check_text(cwd, "cwd")
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


def _check_env(env: object) -> None:
    if env is None:
        return
    if not isinstance(env, Mapping):
        raise ValueError("env must be an object of texts")
    for name, value in env.items():
        if not isinstance(name, str) or not name or "=" in name or "\x00" in name:
            raise ValueError(f"env has {name!r:.100}, which is no name of a variable")
        _check_text(value, f"env.{name}")


def _check_text(value: object, where: str) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{where} must be text, not {value!r:.100}")
    if "\x00" in value:
        raise ValueError(f"{where} holds a NUL character, which no program can be given")


def _base_environment() -> dict[str, str]:
    base = {"PATH": os.defpath, "LANG": "C.UTF-8"}
    return base | {name: os.environ[name] for name in INHERITED if os.environ.get(name)}


def _identity(job: Job) -> dict[str, str]:
    return {
        "FUSEE_RUN_ID": str(job.run_id),
        "FUSEE_ATTEMPT": str(job.attempt),
        "FUSEE_FIRE_TIME": job.fire_time or "",
        "FUSEE_SHARD_INDEX": str(job.shard_index),
        "FUSEE_SHARD_TOTAL": str(job.shard_total),
        "FUSEE_IDEMPOTENCY_KEY": f"fusee-run-{job.run_id}",
    }


def _steers(name: str) -> bool:
    """Whether a variable decides which code an innocent program runs."""
    return name in ("PATH", "ENV", "BASH_ENV", "IFS") or name.startswith(("LD_", "DYLD_", "BASH_FUNC_"))


def _allows(entry: str, program: str, found: str) -> bool:
    """`backup` allows that name from PATH; `/opt/jobs/backup` that file; `/opt/jobs/` all in it."""
    if "/" not in entry:
        return program == entry
    if entry.endswith("/"):
        return found.startswith(os.path.normpath(entry) + "/")
    return found == os.path.normpath(entry)


def _refused(text: str) -> Ended:
    return Ended(End.ABANDONED, error=storable(text), effect=Effect.NONE)


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
    error = died_of(code)
    if output and (last := output.strip()[-QUOTED:]):
        error += f"\n{last}"
    result = None if code is None or code < 0 else f'{{"exit_code":{code}}}'
    return Ended(End.FAILED, result=result, error=error, output=output)
