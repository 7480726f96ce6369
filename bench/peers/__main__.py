"""`python -m bench.peers`: installs the peers, measures them in rounds, prints a table."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

from rich.console import Console

from . import PEERS, available_peers
from .report import as_json, as_table
from .rounds import measure_rounds
from .server import postgres


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--jobs", type=int, help="jobs a measurement; by default sized for each peer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=200, help="enqueues a latency measurement")
    parser.add_argument("--only", nargs="+", metavar="PEER", choices=[peer.name for peer in PEERS])
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    console = Console()
    missing: dict[str, str] = {}
    peers = available_peers(asked.only, missing)
    with postgres() as server:
        measuring = measure_rounds(
            peers, server, rounds=asked.rounds, jobs=asked.jobs, samples=asked.samples, tell=console.log
        )
        results = asyncio.run(measuring)
    console.print(as_table(peers, results))
    for name, reason in {**missing, **results.failed}.items():
        console.print(f"{name} was not measured: {reason}", markup=False)
    if asked.json:
        asked.json.write_text(json.dumps(as_json(peers, results, missing), indent=2) + "\n")


if __name__ == "__main__":
    main()
