"""`python -m fusee.contrib.cdc.control_plane --port 8090 --journal journal.jsonl --jobs 300`."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from aiohttp import web

from fusee.contrib.cdc.control_plane.faults import Faults
from fusee.contrib.cdc.control_plane.jobs import Jobs
from fusee.contrib.cdc.control_plane.journal import Journal, read_journal
from fusee.contrib.cdc.control_plane.server import control_plane

__all__: list[str] = []


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("fusee.contrib.cdc.control_plane", description=__doc__)
    parser.add_argument("--port", type=int, default=8090, help="0 takes a free one")
    parser.add_argument("--journal", type=Path, required=True, help="goes on with it when it is there")
    parser.add_argument("--jobs", type=int, default=0, help="add so many CDC jobs, job-1 and on")
    parser.add_argument("--panama-jobs", type=int, default=0, help="add so many Panama jobs, panama-1 and on")
    parser.add_argument("--seed", type=int, help="for faults that have a probability")
    parser.add_argument(
        "--until-stdin-ends", action="store_true", help="end with the process that started it"
    )
    return parser.parse_args()


async def _serve(given: argparse.Namespace) -> None:
    journal = Journal(given.journal)
    jobs = Jobs(journal, read_journal(given.journal))
    for prefix, count, kind in (("job", given.jobs, "cdc"), ("panama", given.panama_jobs, "panama")):
        for nr in range(1, count + 1):
            if f"{prefix}-{nr}" not in jobs.all:
                jobs.add(f"{prefix}-{nr}", {"kind": kind})
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if given.until_stdin_ends:
        loop.add_reader(sys.stdin.fileno(), stop.set)
    # Those that hang on purpose are not waited for.
    runner = web.AppRunner(control_plane(jobs, Faults(given.seed)), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", given.port)
    await site.start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await stop.wait()
    await runner.cleanup()
    journal.close()


if __name__ == "__main__":
    asyncio.run(_serve(_arguments()))
