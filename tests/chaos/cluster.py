"""A whole cluster on one machine: processes as users start them, a client that does not give up, and someone
who kills."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from fusee import Fusee
from fusee.config import load
from fusee.contrib.cdc.control_plane import Plane
from tests.chaos.harness import ENVIRONMENT, ROOT, Fleet, Journal, Member
from tools import servers

__all__ = ["BAD_ITEM", "Cluster", "cluster"]

BAD_ITEM = 4_999
"""Every so manieth item of the bulk job fails."""
KINDS = ("worker", "worker", "worker", "dispatcher", "server")


@dataclass
class Cluster(Fleet):
    """Its members are started by the command line, with their settings in the environment."""

    environment: dict[str, str] = field(default_factory=dict)
    rabbitmq: servers.Server | None = None
    ports: dict[Member, int] = field(default_factory=dict)
    deaths: list[tuple[int, int]] = field(default_factory=list)
    """(lines in the journal then, pid)"""
    outages: int = 0
    _keys: itertools.count[int] = field(default_factory=itertools.count)

    def start(self, role: str, **settings: Any) -> Member:
        """`stateless=True`: a worker that is told of no database."""
        environment = {**ENVIRONMENT, **self.environment}
        words = [role]
        if role != "dispatcher":
            words += ["--app", "tests.chaos.cluster_app:app"]
        port = servers.free_port()
        if role == "server":
            words += ["--bind", f"127.0.0.1:{port}"]
        if settings.get("stateless"):
            del environment["FUSEE_DATABASE__URL"]
        elif role == "worker":
            environment["FUSEE_BROKER__TYPE"] = "database"
        log = self.folder / f"{role}-{len(self.members) + len(self.gone)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "fusee", *words],
                cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip
        member = Member(role, process, log)
        member.settings = settings
        self.members.append(member)
        if role == "server":
            self.ports[member] = port
        return member

    def kill(self, member: Member) -> None:
        super().kill(member)
        self.deaths.append((self.journal.count(), member.pid))
        self.ports.pop(member, None)

    async def ask(self, http: aiohttp.ClientSession, method: str, path: str, body: Any = None) -> Any:
        """Any server, again and again, under one key: what is answered for was done once."""
        key = f"cluster-{next(self._keys)}"
        deadline = time.monotonic() + 60
        told: Any = None
        while time.monotonic() < deadline:
            port = self.chance.choice([*self.ports.values()])
            url = f"http://127.0.0.1:{port}/api/v1/{path}"
            try:
                async with http.request(
                    method, url, json=body, headers={"Idempotency-Key": key} if method == "POST" else {}
                ) as got:
                    told = await got.json()
                    if got.status < 300:
                        return told
                    assert got.status in (409, 429, 503), f"seed {self.seed}: {method} {path}: {told}"
                    if got.status == 409 and path.endswith("/cancel"):
                        return told
            except (aiohttp.ClientError, TimeoutError) as error:
                told = error
            await asyncio.sleep(0.1)
        raise AssertionError(f"seed {self.seed}: {method} {path} was not answered in 60 s: {told}")

    async def fire(self, seconds: float) -> None:
        """Kill someone every second or two; now and then RabbitMQ itself."""
        assert self.rabbitmq is not None
        ends = time.monotonic() + seconds
        down_at = [seconds * share for share in (0.25, 0.6)]
        began = time.monotonic()
        while time.monotonic() < ends:
            await asyncio.sleep(self.chance.uniform(0.5, 2.5))
            if down_at and time.monotonic() - began > down_at[0]:
                down_at.pop(0)
                await asyncio.to_thread(self.rabbitmq.halt, kill=True)
                await asyncio.sleep(self.chance.uniform(1, 5))
                await asyncio.to_thread(self.rabbitmq.start)
                self.outages += 1
                continue
            victim = self.chance.choice(self.of(self.chance.choice(KINDS)))
            assert not self.crashed(), f"seed {self.seed}: {self.crashed()[0]}"
            self.kill(victim)
            self.start(victim.role, **victim.settings)


@asynccontextmanager
async def cluster(url: str, rabbitmq: servers.Server, plane: Plane, folder: Path) -> AsyncIterator[Cluster]:
    """Two servers, three dispatchers, six workers: four of them without a database."""
    seed = int(os.environ.get("FUSEE_CHAOS_SEED", time.time_ns() % 10**6))
    print(f"chaos seed {seed} (FUSEE_CHAOS_SEED={seed} repeats it)")
    journal = Journal(folder / "journal")
    environment = {
        "FUSEE_DATABASE__URL": url,
        "FUSEE_BROKER__TYPE": "rabbitmq",
        "FUSEE_BROKER__URL": rabbitmq.url,
        "FUSEE_BROKER__PREFIX": f"chaos-{seed}",
        "FUSEE_BROKER__REDISPATCH_AFTER": "3s",
        "FUSEE_WORKER__LEASE_TTL": "6s",
        "FUSEE_WORKER__HEARTBEAT_INTERVAL_SECONDS": "1",
        "FUSEE_DISPATCHER__RECOVER_INTERVAL": "500ms",
        "CLUSTER_PLANE": plane.url,
        "CLUSTER_JOURNAL": str(journal.path),
    }
    app = Fusee(config=load(env={}, overrides={"database": {"url": url}}))
    async with app:
        crew = Cluster(
            app, url, journal, folder, seed, random.Random(seed), environment=environment, rabbitmq=rabbitmq
        )
        try:
            for role, count in (("server", 2), ("dispatcher", 3), ("worker", 2)):
                for _ in range(count):
                    crew.start(role)
            for _ in range(4):
                crew.start("worker", stateless=True)
            yield crew
        finally:
            crew.end()
