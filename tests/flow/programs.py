"""The real `fusee` program without its start-up time: a process that has imported it forks for each call.

A shell finds `fusee` on its path as a script that hands its arguments, folder, environment and open files to
that process, and ends as the program ended. Starting Python and importing everything costs a second each
time; a test that runs two hundred commands cannot afford that.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

SHIM = """#!{python} -SE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as link:
    link.connect({address!r})
    call = {{"argv": sys.argv, "cwd": os.getcwd(), "env": dict(os.environ)}}
    socket.send_fds(link, [json.dumps(call).encode() + b"\\n"], [0, 1, 2])
    told = b""
    while part := link.recv(100):
        told += part
os._exit(int(told.split()[1]))
"""


class Programs:
    """`with Programs(folder) as programs: programs.sh("fusee run list", cwd)`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = str(folder / "programs.sock")
        self.bin = folder / "bin"

    def __enter__(self) -> Programs:
        self.bin.mkdir()
        shim = self.bin / "fusee"
        shim.write_text(SHIM.format(python=sys.executable, address=self.address))
        shim.chmod(0o755)
        self.server = subprocess.Popen([sys.executable, __file__, self.address], stdout=subprocess.PIPE)
        assert self.server.stdout is not None
        assert self.server.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        self.server.terminate()
        self.server.wait()
        assert self.server.stdout is not None
        self.server.stdout.close()

    def environment(self, **more: str) -> dict[str, str]:
        """As users have it: no setting of ours."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FUSEE_")}
        path = f"{self.bin}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {**kept, "PATH": path, "PYTHONPATH": "", **more}

    def sh(self, script: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", script],
            cwd=cwd,
            env=self.environment(**env),
            capture_output=True,
            text=True,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )

    def up(self, cwd: Path, *words: str, **env: str) -> Up:
        return Up(self, cwd, words, env)


class Up:
    """`fusee up` in that folder, with a free port; default settings otherwise."""

    def __init__(self, programs: Programs, cwd: Path, words: tuple[str, ...], env: dict[str, str]) -> None:
        self.log = cwd / "fusee.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(programs.bin / "fusee"), "up", "--bind", "127.0.0.1:0", *words],
                cwd=cwd,
                env=programs.environment(**env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.pid = 0
        self.url = self._started()["address"]

    def _started(self) -> dict[str, Any]:
        ends = time.monotonic() + 60
        while time.monotonic() < ends:
            for line in self.lines():
                if line.get("message") == "started":
                    self.pid = int(line["pid"]) if "pid" in line else 0
                    return line
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)
        raise AssertionError(self.log.read_text())

    def lines(self) -> list[dict[str, Any]]:
        """The log so far; standard error is no terminal, so each line is JSON."""
        found = []
        for line in self.log.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    def __enter__(self) -> Up:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()  # the shim; the program ends with it, as its parent's link is closed
        self.process.wait()


def serve(address: str) -> None:
    """Fork for each call, and tell the pid and then the exit code."""
    import fusee.app.cli
    import fusee.app.rest
    import fusee.observe  # noqa: F401

    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen(64)
    print("ready", flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        link, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            answer(link)
        link.close()


def answer(link: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    text, fds, _, _ = socket.recv_fds(link, 2**20, 3)
    while not text.endswith(b"\n"):
        text += link.recv(2**20)
    call = json.loads(text)
    pid = os.fork()
    if pid == 0:
        link.close()
        run(call, fds)
    for fd in fds:
        os.close(fd)
    link.send(f"{pid} ".encode())
    # Whoever called is gone when the link ends first: the program is told to end as well.
    ended = False
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        readable, _, _ = select.select([link], [], [], 0.01)
        if readable and not ended:
            ended = True
            os.kill(pid, signal.SIGTERM)
        elif readable:
            time.sleep(0.01)
    with suppress(BrokenPipeError):
        link.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def run(call: dict[str, Any], fds: list[int]) -> None:
    for target, fd in enumerate(fds):
        os.dup2(fd, target)
    for fd in fds:
        os.close(fd)
    os.chdir(call["cwd"])
    os.environ.clear()
    os.environ.update(call["env"])
    sys.argv = ["fusee", *call["argv"][1:]]
    sys.path[0] = ""
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(fd, mode, closefd=False) for fd, mode in enumerate("rww"))
    from fusee.app.cli.root import main

    code: Any = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    serve(sys.argv[1])
