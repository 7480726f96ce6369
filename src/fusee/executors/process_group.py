"""A program that leads a process group of its own, and ends with all of the group."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from fusee.engine.worker.executor import Unstoppable
from fusee.executors import watchdog as script
from fusee.executors.account import Account
from fusee.executors.stopping import pause, within
from fusee.executors.tail import Tail

__all__ = ["ProcessGroup", "Watchdog", "exit_words"]

LAST_OUTPUT = 0.5
"""Seconds for the output to close after the leader exited: a process that left the group may hold it open."""
KILLED_WITHIN = 5.0
"""Seconds for a killed process to be gone; longer means that the kernel holds it, or that it is not ours."""
READ = 65536


class Watchdog:
    """Our end of `watchdog.py`, which is started with the first group, and again if it dies."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._groups: set[int] = set()

    def add(self, group: int) -> None:
        self._groups.add(group)
        self._tell(f"+{group}\n")

    def discard(self, group: int) -> None:
        self._groups.discard(group)
        self._tell(f"-{group}\n")

    def ready(self) -> None:
        """Start it before the program that it will watch, so that there is no moment without it."""
        if self._process is None or self._process.poll() is not None:
            self._forget()
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(script.__file__))],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                # Without the worker's secrets: programs of the same user can read a process's environment.
                env={name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PATH") if name in os.environ},
            )
            self._tell("".join(f"+{group}\n" for group in self._groups))

    def close(self) -> None:
        """End it; it kills the groups that were not discarded."""
        self._groups.clear()
        self._forget()

    def _tell(self, text: str) -> None:
        if self._process is not None and self._process.stdin is not None and text:
            with suppress(OSError):  # it died: `ready` starts another, which learns of all groups
                os.write(self._process.stdin.fileno(), text.encode())

    def _forget(self) -> None:
        if self._process is not None:
            if self._process.stdin is not None:
                self._process.stdin.close()
            try:
                self._process.wait(1)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(1)
            self._process = None


class ProcessGroup:
    """One started program: its exit, its output, its end.

    The leader is reaped last: until then its process id, and so the group's, cannot be reused.
    """

    def __init__(self, process: subprocess.Popen[bytes], output: int, tail: Tail, watchdog: Watchdog) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._watchdog = watchdog
        self._output = output
        self._pidfd: int | None = None
        self.tail = tail
        """Takes the output; may be replaced between two pieces of work."""
        self.pid = process.pid
        self.exited: asyncio.Future[None] = self._loop.create_future()
        """Done when the leader has exited. Wait with `asyncio.wait`: a bare await passes a cancel on."""
        self._silent: asyncio.Future[None] = self._loop.create_future()
        self._reaped = False
        self.code: int | None = None
        """After `end`: the exit code, minus the signal's number, or None when other code reaped it."""
        os.set_blocking(output, False)
        self._loop.add_reader(output, self.read)
        self._watch()

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None,
        tail: Tail,
        watchdog: Watchdog,
        executable: str | None = None,
        cwd: str | None = None,
        stdin: IO[bytes] | None = None,
        pass_fds: Sequence[int] = (),
        account: Account | None = None,
    ) -> ProcessGroup:
        """Start a program; raises the `OSError` that says why it did not start."""
        watchdog.ready()
        ours, theirs = os.pipe()
        try:
            process = subprocess.Popen(
                argv,
                executable=executable,
                env=env,
                cwd=cwd,
                stdin=stdin if stdin is not None else subprocess.DEVNULL,
                stdout=theirs,
                stderr=theirs,
                pass_fds=pass_fds,
                start_new_session=True,
                user=None if account is None else account.uid,
                group=None if account is None else account.gid,
                extra_groups=None if account is None else (),
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        watchdog.add(process.pid)
        return cls(process, ours, tail, watchdog)

    async def stop(self, grace: float) -> None:
        """SIGTERM, `grace`, SIGKILL; returns when all of the group is dead. Cancelled, it kills at once."""
        self.signal(signal.SIGTERM)
        await within(self.exited, grace, hurried=True)
        await self.end()

    async def end(self) -> int | None:
        """Kill what is left, keep its last output and reap it; returns the leader's exit code."""
        if self._reaped:
            return self.code
        self.signal(signal.SIGKILL)
        if not await within(self.exited, KILLED_WITHIN):
            self._close()
            raise Unstoppable(
                f"process {self.pid} was killed and is still there {KILLED_WITHIN:g} s later:"
                " it belongs to another user, or hangs in the kernel (a dead network drive?)"
            )
        self.signal(signal.SIGKILL)
        await within(self._silent, LAST_OUTPUT)
        self._close()
        self._reap()
        deadline = self._loop.time() + KILLED_WITHIN
        while _alive(self.pid):
            if self._loop.time() > deadline:
                raise Unstoppable(
                    f"process group {self.pid} was killed and parts of it are still there"
                    f" {KILLED_WITHIN:g} s later: they belong to another user, or hang in the kernel"
                )
            await pause(0.005)
        self._watchdog.discard(self.pid)
        return self.code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every process of the group."""
        if not self._reaped:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def read(self) -> None:
        """Read what has been printed so far."""
        # A few reads at most, then the loop's turn: a program that prints without end must not block it.
        for _ in range(8):
            try:
                data = os.read(self._output, READ)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if not data:
                self._loop.remove_reader(self._output)
                _settle(self._silent)
                return
            self.tail.write(data)

    def _watch(self) -> None:
        """Learn of the leader's exit without reaping it."""
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # not Linux, an old kernel, or other code reaped it
            self._poll()
        else:
            self._loop.add_reader(self._pidfd, self._gone)

    def _poll(self) -> None:
        if self.exited.done():
            return
        try:
            if hasattr(os, "waitid"):
                gone = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            else:
                gone = self._process.poll() is not None
        except ChildProcessError:
            gone = True
        if gone:
            _settle(self.exited)
        else:
            self._loop.call_later(0.02, self._poll)

    def _gone(self) -> None:
        self._close_pidfd()
        _settle(self.exited)

    def _reap(self) -> None:
        # Not Popen.wait: it returns 0 when the exit code is lost, and 0 would mean success.
        try:
            _, status = os.waitpid(self.pid, 0)
            self.code = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            self.code = self._process.returncode
        self._process.returncode = 0 if self.code is None else self.code
        self._reaped = True

    def _close_pidfd(self) -> None:
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    def _close(self) -> None:
        self._close_pidfd()
        if self._output >= 0:
            self._loop.remove_reader(self._output)
            os.close(self._output)
            self._output = -1
        _settle(self._silent)


def exit_words(code: int | None) -> str:
    """Return an exit code in words: `exit code 3`, `killed by signal SIGKILL`."""
    if code is None:
        return "ended, and its exit code was taken by another part of this process"
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    return f"killed by signal {name}"


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _alive(group: int) -> bool:
    """Return whether the group has a process that is more than a zombie."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    processes = Path("/proc")
    if not (processes / "self/stat").exists():
        return True
    for entry in processes.iterdir():
        if entry.name.isdecimal():
            try:
                # The name in parentheses may contain anything, also blanks and parentheses.
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            if fields[2] == str(group) and fields[0] not in "ZX":
                return True
    return False
