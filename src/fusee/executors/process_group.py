"""A program that leads its own process group, and the certainty that all of the group ends."""

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
from fusee.executors import watchdog as warden
from fusee.executors.stopping import pause, within
from fusee.executors.tail import Tail

__all__ = ["Group", "Warden", "died_of"]

LAST_OUTPUT = 0.5
"""Seconds for the output to close after the leader exited: a program that left the group may hold it."""
KILLED_WITHIN = 5.0
"""Seconds for a killed process to be gone; longer means that the kernel holds it, or that it is not ours."""
READ = 65536


class Warden:
    """Our end of `warden.py`; started with the first group, started again should it die."""

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
        """Start it before the program it is to watch, so that there is no moment without it."""
        if self._process is None or self._process.poll() is not None:
            self._forget()
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(warden.__file__))],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._tell("".join(f"+{group}\n" for group in self._groups))

    def close(self) -> None:
        """It kills what we did not discard, and ends."""
        self._groups.clear()
        self._forget()

    def _tell(self, text: str) -> None:
        if self._process is not None and self._process.stdin is not None and text:
            with suppress(OSError):  # it died: `ready` starts another, which is told everything
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


class Group:
    """One started program: its exit, its output, its end.

    The leader is reaped last: until then its process id, and so the group's, cannot be given to another.
    """

    def __init__(self, process: subprocess.Popen[bytes], output: int, tail: Tail, warden: Warden) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._warden = warden
        self._output = output
        self._pidfd: int | None = None
        self.tail = tail
        """Takes the output; may be exchanged between two pieces of work."""
        self.pid = process.pid
        self.exited: asyncio.Future[None] = self._loop.create_future()
        """Done when the leader has exited. Wait with `asyncio.wait`: awaited bare, a cancel would end it."""
        self._silent: asyncio.Future[None] = self._loop.create_future()
        self._reaped = False
        self.code: int | None = None
        """The exit code, minus the signal's number, or None when somebody else took it; after `end`."""
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
        warden: Warden,
        executable: str | None = None,
        cwd: str | None = None,
        stdin: IO[bytes] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> Group:
        """Start it, or raise the `OSError` that says why not."""
        warden.ready()
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
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        warden.add(process.pid)
        return cls(process, ours, tail, warden)

    async def stop(self, grace: float) -> None:
        """SIGTERM, `grace`, SIGKILL; returns when nothing of the group is alive. Cancelled, it hurries."""
        self.signal(signal.SIGTERM)
        await within(self.exited, grace, hurried=True)
        await self.end()

    async def end(self) -> int | None:
        """Kill whatever is left, keep its last output, reap; answers the leader's exit code."""
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
        self._warden.discard(self.pid)
        return self.code

    def signal(self, number: signal.Signals) -> None:
        """Send it to every process of the group."""
        if not self._reaped:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def read(self) -> None:
        """Take what has been printed so far."""
        # At most a few reads, then the loop's turn: a program that prints without end must not own it.
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
        except (AttributeError, OSError):  # not Linux, an old kernel, or somebody else reaped it
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
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        _settle(self.exited)

    def _reap(self) -> None:
        # Not Popen.wait: it answers 0 when the exit code is lost, and 0 would mean that all went well.
        try:
            _, status = os.waitpid(self.pid, 0)
            self.code = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            self.code = self._process.returncode
        self._process.returncode = 0 if self.code is None else self.code
        self._reaped = True

    def _close(self) -> None:
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        if self._output >= 0:
            self._loop.remove_reader(self._output)
            os.close(self._output)
            self._output = -1
        _settle(self._silent)


def died_of(code: int | None) -> str:
    """An exit code in words: `exit code 3`, `killed by signal SIGKILL`."""
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
    """Whether a process of the group is there that is not just waiting to be reaped by its parent."""
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
                # The name in parentheses may hold anything, blanks and parentheses too.
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            if fields[2] == str(group) and fields[0] not in "ZX":
                return True
    return False
