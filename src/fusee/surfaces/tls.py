"""TLS of the servers: certificates that are read again when their files change."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from fusee.config import TlsConfig
from fusee.errors import ConfigError
from fusee.facts import facts

__all__ = ["Certificates"]

log = logging.getLogger("fusee.tls")

LOOK_EVERY = 5.0
"""Seconds until a new certificate is used at the latest."""


class Certificates:
    """The certificate, key and accepted issuers of one server."""

    def __init__(self, config: TlsConfig) -> None:
        assert config.cert_file is not None and config.key_file is not None
        self.cert, self.key, self.client_ca = config.cert_file, config.key_file, config.client_ca_file
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        try:
            if self.client_ca is not None:
                self.context.load_verify_locations(self.client_ca)
                self.context.verify_mode = ssl.CERT_REQUIRED
            self.context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"tls.cert_file {self.cert} and tls.key_file {self.key} cannot be used: {error}; both must be"
                " PEM, and belong together"
            ) from None
        self._seen = self._state()

    def read(self) -> tuple[bytes, bytes, bytes | None]:
        """(key, certificates, issuers of clients), as they are in the files now."""
        issuers = None if self.client_ca is None else self.client_ca.read_bytes()
        return self.key.read_bytes(), self.cert.read_bytes(), issuers

    def changed(self) -> bool:
        """Whether the files are others than when this was asked last."""
        now = self._state()
        before, self._seen = self._seen, now
        return now != before

    async def follow(self) -> None:
        """Use a new certificate for new connections as soon as its files are there; never returns."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            self.refresh()

    def refresh(self) -> None:
        if not self.changed():
            return
        try:
            self.context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            # A file may be half written, or key and certificate not both replaced yet: look again.
            self._seen = ()
            log.warning(
                "the new certificate cannot be used yet; the old one is",
                extra=facts(cert=str(self.cert), error=str(error)),
            )
        else:
            log.info("a new certificate is in use", extra=facts(cert=str(self.cert)))

    def _state(self) -> tuple[object, ...]:
        return tuple(_stamp(file) for file in (self.cert, self.key, self.client_ca) if file is not None)


def _stamp(file: Path) -> tuple[int, int, int]:
    try:
        found = file.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)
