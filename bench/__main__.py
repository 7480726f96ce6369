"""`python -m bench`: enqueue, drain and latency on each database, beside the ceiling and the peers.

Everything is measured in one run and interleaved, so that a slow minute of the machine hits all alike;
figures are medians, and only their ratios mean anything.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.engine import Engine
from bench.peers import Peer, Sizes, available_peers
from bench.peers.rounds import one_round
from tools import servers

SIZES = {
    "sqlite": Sizes(100_000, 100_000),
    "postgres": Sizes(150_000, 100_000),
    "mysql": Sizes(60_000, 60_000),
}
SETTINGS = {"chunk": 2_500, "lanes": 3}

console = Console()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--databases", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument(
        "--peers", action="store_true", help="measure the peers on PostgreSQL in the same run"
    )
    parser.add_argument(
        "--growth", action="store_true", help="drain 10k, then 1M: does the queue's length matter?"
    )
    parser.add_argument("--memory", action="store_true", help="a worker's memory while it drains 1M runs")
    parser.add_argument("--scale", type=float, default=1.0, help="multiply the number of runs")
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


async def measure(asked: argparse.Namespace, urls: dict[str, str], server: Any) -> dict[str, Any]:
    engines = {
        name: Engine(f"fusee ({name})", "", _scaled(SIZES[name], asked.scale), SETTINGS)
        for name in asked.databases
    }
    contestants: list[tuple[Peer, str]] = []
    for name, engine in engines.items():
        await engine.prepare(urls[name])
        contestants.append((engine, urls[name]))
    if asked.peers and "postgres" in engines:
        for peer in available_peers():
            url = server.create_database()
            await peer.prepare(url)
            contestants.append((peer, url))
    rounds: dict[str, list[dict[str, float]]] = defaultdict(list)
    for number in range(asked.rounds):
        for peer, url in contestants:
            console.log(f"round {number + 1} of {asked.rounds}: {peer.name}")
            figures = await one_round(peer, url, samples=asked.samples)
            if isinstance(peer, Engine):
                figures["ceiling_per_s"] = peer.sizes.drain / await peer.ceiling(url, peer.sizes.drain)
            rounds[peer.name].append(figures)
    answer: dict[str, Any] = {
        name: {"medians": {f: median(r[f] for r in found) for f in found[0]}, "rounds": found}
        for name, found in rounds.items()
    }
    if asked.growth:
        for name, engine in engines.items():
            console.log(f"growth: {name}")
            answer[engine.name]["growth"] = {
                n: n / await engine.drain(urls[name], n, 1)
                for n in (10_000, 100_000, int(1_000_000 * asked.scale))
            }
    if asked.memory:
        for name, engine in engines.items():
            console.log(f"memory: {name}")
            answer[engine.name]["memory"] = await engine.memory(urls[name], int(1_000_000 * asked.scale))
    return answer


def _scaled(sizes: Sizes, scale: float) -> Sizes:
    return Sizes(int(sizes.enqueue * scale), int(sizes.drain * scale))


def show(answer: dict[str, Any]) -> None:
    table = Table(title="Runs a second, medians; idle latency in milliseconds")
    for heading in ("", "enqueue", "drain, 1", "drain, 2", "ceiling", "drain/ceiling", "p50", "p99"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, found in answer.items():
        m = found["medians"]
        ceiling = m.get("ceiling_per_s")
        table.add_row(
            name,
            f"{m['enqueue_per_s']:,.0f}",
            f"{m['drain_1_per_s']:,.0f}",
            f"{m['drain_2_per_s']:,.0f}",
            f"{ceiling:,.0f}" if ceiling else "",
            f"{m['drain_1_per_s'] / ceiling:.0%}" if ceiling else "",
            f"{m['latency_p50_ms']:.2f}",
            f"{m['latency_p99_ms']:.2f}",
        )
    console.print(table)
    for name, found in answer.items():
        if growth := found.get("growth"):
            console.print(
                f"{name}: drain by queue length:", {n: f"{rate:,.0f}/s" for n, rate in growth.items()}
            )
        if memory := found.get("memory"):
            console.print(f"{name}: memory of a worker:", memory)


def main() -> None:
    asked = arguments()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fusee-bench-"))
        urls = {"sqlite": f"sqlite:///{folder}/fusee.db"}
        server = None
        if "postgres" in asked.databases:
            server = stack.enter_context(servers.postgres())
            urls["postgres"] = server.create_database()
        if "mysql" in asked.databases:
            urls["mysql"] = stack.enter_context(servers.mysql()).create_database()
        answer = asyncio.run(measure(asked, urls, server))
    show(answer)
    if asked.json:
        asked.json.write_text(json.dumps(answer, indent=2) + "\n")


if __name__ == "__main__":
    main()
