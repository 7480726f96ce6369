"""`python -m bench`: enqueue, drain and latency on each database, beside the ceiling and the peers.

Everything is measured in one run and interleaved, so that a slow minute of the machine hits all alike;
figures are medians, and only their ratios mean anything.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import defaultdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.databases import Databases
from bench.engine import Engine
from bench.growth import Growth, as_table, measure_growth
from bench.peers import Peer, Sizes, available_peers
from bench.peers.rounds import one_round

SIZES = {
    "sqlite": Sizes(100_000, 100_000),
    "postgres": Sizes(150_000, 100_000),
    "mysql": Sizes(60_000, 60_000),
}
SETTINGS = {"chunk": 5_000, "lanes": 3}

console = Console()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--databases", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument(
        "--peers", action="store_true", help="measure the peers on PostgreSQL in the same run"
    )
    parser.add_argument(
        "--growth",
        action="store_true",
        help="only this: drain 10k, 100k and 1M: does length matter?",
    )
    parser.add_argument("--memory", action="store_true", help="a worker's memory while it drains 1M runs")
    parser.add_argument("--scale", type=float, default=1.0, help="multiply the number of runs")
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


async def measure(asked: argparse.Namespace, databases: Databases) -> dict[str, Any]:
    contestants: list[tuple[Peer, str]] = []
    for name in asked.databases:
        contestants.append((_engine(name, asked.scale), databases.create(name)))
    if asked.peers and "postgres" in asked.databases:
        contestants += [(peer, databases.create("postgres")) for peer in available_peers()]
    for peer, url in contestants:
        await peer.prepare(url)
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
    for peer, url in contestants:
        if asked.memory and isinstance(peer, Engine):
            console.log(f"memory: {peer.name}")
            answer[peer.name]["memory"] = await peer.memory(url, int(1_000_000 * asked.scale))
    return answer


async def measure_growths(asked: argparse.Namespace, databases: Databases) -> dict[str, Growth]:
    return {
        name: await measure_growth(
            _engine(name, asked.scale),
            partial(databases.fresh, name),
            scale=asked.scale,
            tell=console.log,
        )
        for name in asked.databases
    }


def _engine(name: str, scale: float) -> Engine:
    sizes = SIZES[name]
    sizes = Sizes(int(sizes.enqueue * scale), int(sizes.drain * scale))
    return Engine(f"fusee ({name})", "", sizes, SETTINGS)


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
        if memory := found.get("memory"):
            console.print(f"{name}: memory of a worker:", memory)


def main() -> None:
    asked = arguments()
    answer: dict[str, Any]
    with Databases.opened(asked.databases) as databases:
        if asked.growth:
            growths = asyncio.run(measure_growths(asked, databases))
            console.print(as_table(growths))
            answer = {name: growth.rates for name, growth in growths.items()}
        else:
            answer = asyncio.run(measure(asked, databases))
            show(answer)
    if asked.json:
        asked.json.write_text(json.dumps(answer, indent=2) + "\n")


if __name__ == "__main__":
    main()
