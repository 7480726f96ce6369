"""Whose rights a program has, and what it may read of the worker that starts it."""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from fusee.errors import ConfigError

__all__ = ["Account", "conceal", "concealed", "find_account"]

PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4
CAPABILITIES = {"CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7}
"""What a worker needs to start, and to stop, programs of another user: numbers of Linux."""


@dataclass(frozen=True, slots=True)
class Account:
    """A user of this machine."""

    name: str
    uid: int
    gid: int
    home: str

    def environment(self) -> dict[str, str]:
        return {"HOME": self.home, "LOGNAME": self.name, "USER": self.name}


def find_account(text: str) -> Account:
    """Return the account that `executors.shell.user` names; raises `ConfigError` when it cannot be used."""
    import grp  # not on Windows, where there is no other user to run as
    import pwd

    user, _, group = text.partition(":")
    try:
        known = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
        name, uid, gid, home = known.pw_name, known.pw_uid, known.pw_gid, known.pw_dir
    except KeyError:
        if not user.isdecimal() or not group:
            hint = "; a number without an entry needs its group as well, such as 1500:1500"
            raise ConfigError(
                f"executors.shell.user {text!r} is no user of this machine: create it"
                f" (useradd --system {user or 'NAME'}){hint if user.isdecimal() else ''}"
            ) from None
        name, uid, gid, home = user, int(user), -1, "/"
    if group:
        try:
            gid = int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid
        except KeyError:
            raise ConfigError(f"executors.shell.user {text!r}: this machine has no group {group!r}") from None
    if not os.path.isdir(home):  # noqa: PTH112
        home = "/"
    if (uid, gid) != (os.geteuid(), os.getegid()) and (missing := _missing()):
        raise ConfigError(
            f"executors.shell.user {text!r} needs a worker that may change users, and this one lacks"
            f" {', '.join(missing)}: start it as root, or give these capabilities to its unit or container"
        )
    return Account(name, uid, gid, home)


def _missing() -> list[str]:
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return [] if os.geteuid() == 0 else list(CAPABILITIES)
    held = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:")), 0)
    return [name for name, bit in CAPABILITIES.items() if not held >> bit & 1]


def conceal() -> None:
    """Keep other processes of this user from reading our environment, memory and open files in /proc.

    Root with CAP_SYS_PTRACE can read them still: a worker that runs as root needs `executors.shell.user`.
    This also turns off core dumps of this process, which would contain the same.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def concealed() -> bool:
    return sys.platform == "linux" and bool(ctypes.CDLL(None).prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 0)
