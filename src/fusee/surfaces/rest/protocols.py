"""HTTP/1.1 on a connection: uvicorn's two protocols, with a limit on heads and refusals that come in turn.

Three rules hold for a refusal by the protocol itself (the bytes are no HTTP, or a head does not end). The
refused request is not carried out. Requests before it on the same connection are answered first. And the
client can read the refusal: the connection stays half open for a moment, because closing one that holds
unread bytes makes the kernel discard what was sent.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from fusee.surfaces.rest.problems import MEDIA_TYPE, Problem

__all__ = ["head_bound", "protocol_for"]

LINGER = 2.0
"""Seconds that a client gets to read why its connection ends, and to stop sending."""

_REASONS = {400: "Bad Request", 431: "Request Header Fields Too Large"}


def head_bound(max_header: int) -> int:
    """The parser's own limit on a head: `HeadLimit` refuses sooner whatever does come to an end."""
    return max(64 * 2**10, 2 * max_header)


def protocol_for(max_header: int) -> type[asyncio.Protocol]:
    """The protocol on httptools where that is installed, otherwise the one on h11."""
    try:
        return _httptools(max_header)
    except ImportError:
        return H11


class H11(H11Protocol):
    """Parses no request before the one before it is answered; has a limit on heads (`head_bound`)."""

    _refused = False

    def data_received(self, data: bytes) -> None:
        if not self._refused:
            super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        error = sys.exception()
        self._refused = True
        large = isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == 431
        answer = _too_large() if large else _malformed()
        # An answer that has begun cannot be taken back; the client learns it from the connection's end.
        _end(self, answer if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) else b"")


def _httptools(max_header: int) -> type[asyncio.Protocol]:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    bound = head_bound(max_header)

    class HttpTools(HttpToolsProtocol):
        """The parser has no limits: a client could send header after header, or trailers, without end.

        Counted are the bytes since a head or a piece of a body was last complete. A read that completes
        one counts as nothing, so up to one read more may be buffered; `HeadLimit` then judges exactly."""

        _advanced = False
        _unfinished = 0
        _in_head = True
        _refusal: bytes | None = None

        def data_received(self, data: bytes) -> None:
            if self._refusal is not None:
                return
            self._advanced = False
            super().data_received(data)
            self._unfinished = 0 if self._advanced else self._unfinished + len(data)
            if self._unfinished > bound:
                self._refuse(_too_large())

        def on_headers_complete(self) -> None:
            self._advanced, self._in_head = True, False
            super().on_headers_complete()

        def on_header(self, name: bytes, value: bytes) -> None:
            if self._in_head:  # after the body it is a trailer, which must not add to a head that was judged
                super().on_header(name, value)

        def on_body(self, body: bytes) -> None:
            self._advanced = True
            super().on_body(body)

        def on_message_complete(self) -> None:
            self._advanced, self._in_head = True, True
            super().on_message_complete()

        def send_400_response(self, msg: str) -> None:
            self._refuse(_malformed())

        def _refuse(self, answer: bytes) -> None:
            if self._refusal is not None or self.transport.is_closing():
                return
            self._refusal = answer
            if not self._in_head and self.pipeline and self.pipeline[0][0] is self.cycle:
                self.pipeline.popleft()  # it is this request whose body is refused: it never starts
                return
            ours = not self._in_head or self.cycle is None
            if ours or (self.cycle.response_complete and not self.pipeline):
                begun = not self._in_head and self.cycle.response_started
                _end(self, b"" if begun else answer)

        def on_response_complete(self) -> None:
            last = not self.pipeline
            super().on_response_complete()
            if last and self._refusal is not None:
                _end(self, self._refusal)

    return HttpTools


def _end(protocol: Any, answer: bytes) -> None:
    """Say it, and close; what is still on its way to us is discarded until the client has seen the end."""
    transport = protocol.transport
    if transport.is_closing():
        return
    cycle = protocol.cycle
    if cycle is not None and not cycle.response_complete:
        cycle.disconnected = True  # the request whose body this refuses: nobody waits for its answer
        cycle.message_event.set()
    protocol._unset_keepalive_if_required()
    transport.write(answer)
    if transport.can_write_eof():
        transport.write_eof()
    protocol.flow.resume_reading()
    protocol.loop.call_later(LINGER, transport.close)


def _too_large() -> bytes:
    return _raw(431, "the request head does not end within its limit (api.max_header)")


def _malformed() -> bytes:
    return _raw(400, "this is not HTTP/1.1 as we understand it")


def _raw(status: int, detail: str) -> bytes:
    """An answer to what is not a request."""
    text = json.dumps(Problem(status, detail).body("-", {})).encode()
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {MEDIA_TYPE}\r\n"
        f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + text
