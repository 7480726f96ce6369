"""TCP settings by which the kernel notices a peer that is gone without a word.

A host that vanishes, or a firewall that forgets a connection, sends nothing: the kernel would repeat what was
sent for a quarter of an hour before it tells anyone. A proxy that acknowledges and forwards nothing is beyond
the kernel; deadlines on what is asked notice that.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any

__all__ = ["GONE_AFTER", "keep_alive"]

GONE_AFTER = 15
"""Seconds without an acknowledgement after which a connection counts as lost."""
IDLE = 5
INTERVAL = 3
PROBES = 3

_OPTIONS = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", IDLE),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", INTERVAL),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", PROBES),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", GONE_AFTER * 1000),
)


def keep_alive(transport: Any) -> None:
    """Have the kernel probe the peer of an asyncio transport; other than TCP sockets are left alone."""
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    for level, name, value in _OPTIONS:
        option = getattr(socket, name, None)  # not every system has all of them
        if option is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(level, option, value)
