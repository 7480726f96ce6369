"""Kills the process groups of a worker that died. Runs as a script, with the standard library only.

A worker that is killed outright cannot clean up, and PR_SET_PDEATHSIG reaches a program but not what
that program started. So this small process outlives the worker by a moment: it reads `+1234` and `-1234`
(groups that started and ended) and, when the worker is gone, kills what is left.
"""

from __future__ import annotations

import os
import select
import signal

LOOK = 2.0
"""Seconds between two looks at the parent, in case a stray copy of the pipe keeps it open."""


def watch(fd: int, parent: int) -> set[int]:
    """Follow the groups until the pipe closes or the parent changes; returns those that are alive."""
    groups: set[int] = set()
    rest = b""
    while True:
        ready, _, _ = select.select([fd], [], [], LOOK)
        if ready:
            data = os.read(fd, 65536)
            if not data:
                return groups
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
        elif os.getppid() != parent:
            return groups


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for group in watch(0, os.getppid()):
        try:
            os.killpg(group, signal.SIGKILL)
        except OSError:
            pass


if __name__ == "__main__":
    main()
