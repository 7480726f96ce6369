"""Many runs at once: `enqueue_each` writes thousands in one go.

python examples/bulk_enqueue.py [HOW_MANY]      default 20000; runs them all, tells the speed, and ends

The same from the command line, from a file with one run a line:

fusee run submit --from-file runs.ndjson
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from fusee import Fusee

A_CALL = 5000

done = 0


async def main(folder: Path, how_many: int) -> None:
    app = Fusee(f"sqlite:///{folder}/bulk.db")

    @app.handler("count")
    async def count(number: int) -> None:
        global done
        done += 1

    async with app:
        began = time.perf_counter()
        for start in range(0, how_many, A_CALL):
            numbers = range(start, min(start + A_CALL, how_many))
            # Accepted all or none: a call that failed can be repeated.
            await app.enqueue_each(count, [{"number": n} for n in numbers])
        took = time.perf_counter() - began
        print(f"enqueued {how_many} runs in {took:.2f} s: {how_many / took:,.0f} a second")

        began = time.perf_counter()
        async with app.running():
            last = (await app.enqueue("count", {"number": how_many}, priority=-1)).id
            await app.runs.wait(last)
        took = time.perf_counter() - began
        print(f"executed {done} runs in {took:.2f} s: {done / took:,.0f} a second")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder), int(sys.argv[1]) if len(sys.argv) > 1 else 20_000))
