"""TLS and mutual TLS on REST and gRPC, with certificates that are replaced while the servers run."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from cryptography import x509

from fusee import Fusee
from fusee.config import load
from fusee.errors import ConfigError
from fusee.surfaces.rest.serving import ApiServer
from tests.flow.certificates import Issuer

RUNS = "/api/v1/runs"


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path)


def tls(issuer: Issuer, **more: Any) -> dict[str, Any]:
    cert, key = issuer.issue("server")
    return {"cert_file": str(cert), "key_file": str(key), **more}


def trusting(issuer: Issuer, client: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(issuer.file))
    if client is not None:
        context.load_cert_chain(*client)
    return context


async def ask(url: str, context: ssl.SSLContext) -> int:
    connector = aiohttp.TCPConnector(ssl=context, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as client, client.get(f"{url}{RUNS}") as answer:
        return answer.status


async def shown(server: ApiServer) -> int:
    """The serial number of the certificate that new connections see."""
    host, port = server.address
    pem = await asyncio.to_thread(ssl.get_server_certificate, (host, port))
    return x509.load_pem_x509_certificate(pem.encode()).serial_number


async def test_rest_serves_tls(serving, issuer):
    async with serving(tls=tls(issuer)) as served:
        assert served.url.startswith("https://")
        assert await ask(served.url, trusting(issuer)) == 200
        with pytest.raises(aiohttp.ClientError):
            await ask(served.url, ssl.create_default_context())  # of an issuer that nobody knows
        with pytest.raises(aiohttp.ClientError):
            await ask(served.url.replace("https", "http"), trusting(issuer))


async def test_mutual_tls_lets_in_only_clients_with_a_certificate(serving, issuer, tmp_path):
    (tmp_path / "other").mkdir()
    stranger = Issuer(tmp_path / "other", "stranger")
    async with serving(tls=tls(issuer, client_ca_file=str(issuer.file))) as served:
        assert await ask(served.url, trusting(issuer, issuer.issue("client"))) == 200
        for client in (None, stranger.issue("client")):
            with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
                await ask(served.url, trusting(issuer, client))
        await served.app.keys.create("a", "admin")
        served.server.services.authenticator.forget()
        assert await ask(served.url, trusting(issuer, issuer.issue("client"))) == 401, "and a key"


async def test_a_new_certificate_is_used_without_a_restart(serving, issuer):
    async with serving(tls=tls(issuer)) as served:
        first = await shown(served.server)
        issuer.issue("server")
        served.server.certificates.refresh()
        second = await shown(served.server)
        assert second != first
        (issuer.folder / "server.pem").write_text("half a certifi")
        served.server.certificates.refresh()
        assert await shown(served.server) == second, "the one of before"
        issuer.issue("server")
        served.server.certificates.refresh()
        assert await shown(served.server) not in (first, second)


async def test_files_that_cannot_be_used_are_told_at_the_start(serving, issuer, tmp_path):
    cert, _ = issuer.issue("server")
    _, key = issuer.issue("another")
    for wrong in ((cert, key), (cert, tmp_path / "missing.key"), (tmp_path / "missing.pem", key)):
        files = {"cert_file": str(wrong[0]), "key_file": str(wrong[1])}
        with pytest.raises(ConfigError, match=r"tls\.cert_file"):
            async with serving(tls=files):
                pass


@pytest.mark.parametrize(
    "wrong", [{"cert_file": "a.pem"}, {"key_file": "a.key"}, {"client_ca_file": "ca.pem"}]
)
def test_half_a_configuration_is_refused(wrong):
    with pytest.raises(ConfigError, match=r"tls .*needs"):
        load(env={}, overrides={"tls": wrong})


def test_services_call_back_over_tls():
    settings = {"cert_file": "c.pem", "key_file": "k.pem"}
    config = load(env={}, overrides={"tls": settings, "api": {"bind_address": "127.0.0.1:8443"}})
    assert config.callback_url == "https://127.0.0.1:8443"
    public = {"bind_address": "127.0.0.1:8443", "public_url": "http://fusee.example"}
    assert load(env={}, overrides={"tls": settings, "api": public}).callback_url == "http://fusee.example"


# -- gRPC


async def healthy(address: str, credentials: grpc.ChannelCredentials) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    async with grpc.aio.secure_channel(address, credentials) as channel:
        await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)


async def test_grpc_serves_tls_and_mutual_tls_and_follows_its_certificate(issuer, tmp_path):
    settings = tls(issuer, client_ca_file=str(issuer.file))
    overrides = {
        "database": {"url": f"sqlite:///{tmp_path}/g.db"},
        "grpc": {"enabled": True, "bind_address": "127.0.0.1:0"},
        "tls": settings,
    }
    cert, key = issuer.issue("client")
    known = grpc.ssl_channel_credentials(issuer.file.read_bytes(), key.read_bytes(), cert.read_bytes())
    nobody = grpc.ssl_channel_credentials(issuer.file.read_bytes())
    async with Fusee(config=load(env={}, overrides=overrides)) as app:
        await app.store.upgrade()
        server = app.grpc()
        running = asyncio.create_task(server.run())
        await server.started.wait()
        try:
            await healthy(server.address, known)
            with pytest.raises(grpc.aio.AioRpcError):
                await healthy(server.address, nobody)
            issuer.issue("server")
            await healthy(server.address, known)
        finally:
            server.stop()
            await running


async def test_grpc_is_not_offered_to_a_network_without_tls(tmp_path):
    overrides = {
        "database": {"url": f"sqlite:///{tmp_path}/g.db"},
        "grpc": {"enabled": True, "bind_address": "0.0.0.0:0"},
    }
    async with Fusee(config=load(env={}, overrides=overrides)) as app:
        await app.store.upgrade()
        await app.keys.create("a", "admin")
        with pytest.raises(ConfigError, match=r"set tls\.cert_file and tls\.key_file"):
            await app.grpc().run()
