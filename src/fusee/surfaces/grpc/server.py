"""The gRPC server: the batch service, health, and reflection, so that tools need no proto file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from fusee.access.authenticator import Authenticator, is_forwarding
from fusee.access.principal import Caller, Principal
from fusee.batches.grpc import BatchSchedulerService
from fusee.batches.service.batches import BatchOperations
from fusee.config import GrpcConfig, TlsConfig
from fusee.config.addresses import is_loopback
from fusee.errors import ConfigError, Denied
from fusee.surfaces.grpc.generated import batch_scheduler_pb2 as pb
from fusee.surfaces.grpc.generated import batch_scheduler_pb2_grpc as stubs
from fusee.surfaces.tls import Certificates

__all__ = ["GrpcServer"]

GRACE = 10.0
MOST_MESSAGE = 16 * 2**20


class GrpcServer:
    """`await server.run()` until `server.stop()`; `server.address` once it has `started`."""

    def __init__(
        self,
        config: GrpcConfig,
        tls: TlsConfig,
        batches: Callable[[str], BatchOperations],
        authenticator: Authenticator,
    ) -> None:
        self.config = config
        self.tls = tls
        self.batches = batches
        self.authenticator = authenticator
        self.started = asyncio.Event()
        self.address = ""
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        host, _, port = self.config.bind_address.rpartition(":")
        if not is_loopback(host.strip("[]")) and not await self.authenticator.keys.any():
            raise ConfigError(
                f"grpc.bind_address {self.config.bind_address} can be reached from other machines, and there"
                " is no API key: make one with `fusee key create NAME --role admin`, or bind to 127.0.0.1"
            )
        if not is_loopback(host.strip("[]")) and not self.tls.enabled:
            raise ConfigError(
                f"grpc.bind_address {self.config.bind_address} can be reached from other machines, and keys"
                " would travel unencrypted: set tls.cert_file and tls.key_file, or bind to 127.0.0.1 behind a"
                " proxy that ends TLS"
            )
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", MOST_MESSAGE)])
        stubs.add_BatchSchedulerServiceServicer_to_server(
            BatchSchedulerService(self.batches, self._admit), server
        )
        healthy = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
        service = pb.DESCRIPTOR.services_by_name["BatchSchedulerService"].full_name
        reflection.enable_server_reflection((service, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        try:
            if self.tls.enabled:
                bound = server.add_secure_port(self.config.bind_address, _credentials(Certificates(self.tls)))
            else:
                bound = server.add_insecure_port(self.config.bind_address)
        except RuntimeError:
            bound = 0
        if bound == 0:
            raise ConfigError(f"grpc.bind_address {self.config.bind_address} cannot be bound: is it in use?")
        self.address = f"{host}:{bound}" if port == "0" else self.config.bind_address
        await server.start()
        for name in ("", service):
            await healthy.set(name, health_pb2.HealthCheckResponse.SERVING)
        self.started.set()
        try:
            await self._stop.wait()
        finally:
            await healthy.enter_graceful_shutdown()
            await server.stop(GRACE)

    async def _admit(self, context: Any) -> Caller:
        given = {str(name).lower(): str(value) for name, value in context.invocation_metadata() or ()}
        return (await self._principal(given, context.peer())).acting_in(given.get("x-fusee-namespace"))

    async def _principal(self, given: Mapping[str, str], peer: str) -> Principal:
        key = _key(given)
        if key is not None:
            return await self.authenticator.by_key(key, peer.rpartition(":")[0], "grpc")
        host = self.config.bind_address.rpartition(":")[0].strip("[]")
        if (
            is_loopback(host)
            and not any(is_forwarding(name) for name in given)
            and await self.authenticator.open_to_this_machine()
        ):
            return self.authenticator.on_this_machine()
        raise Denied("send an API key as metadata: authorization = Bearer KEY")


def _credentials(certificates: Certificates) -> Any:
    """Credentials that are asked for at each handshake, so that a new certificate needs no restart."""

    def configuration() -> Any:
        key, chain, issuers = certificates.read()
        return grpc.ssl_server_certificate_configuration([(key, chain)], root_certificates=issuers)

    def fetch() -> Any:
        try:
            return configuration() if certificates.changed() else None
        except OSError:  # half replaced: the one of before is used on
            return None

    return grpc.dynamic_ssl_server_credentials(
        configuration(), fetch, require_client_authentication=certificates.client_ca is not None
    )


def _key(given: Mapping[str, str]) -> str | None:
    scheme, _, credentials = given.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    return "" if scheme else given.get("x-api-key")
