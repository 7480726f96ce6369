"""The smallest application: three handlers, and a program that uses them.

python examples/hello.py                    runs the platform inside this program, shows it off, and ends

To run it as a service instead, with the handlers of this file:

cd examples
fusee up --app hello:app                    the platform, until Ctrl-C
fusee run submit greet -p name=Ada --wait   in another terminal
"""

import asyncio
import hashlib
import tempfile
import time
from pathlib import Path

from fusee import Fusee, Retry, RetryPolicy, RunContext, RunFailed

app = Fusee()


@app.handler("greet", timeout=30)
async def greet(name: str) -> str:
    """An `async def` runs on the event loop: the cheapest way."""
    return f"hello {name}"


@app.handler("checksum", timeout=30)
def checksum(text: str) -> str:
    """A plain function runs in a thread, so it may block."""
    time.sleep(0.05)
    return hashlib.sha256(text.encode()).hexdigest()


@app.handler("crunch", timeout=30, isolation="process")
def crunch(limit: int) -> int:
    """In a process it uses another core, and can be killed when its time is up."""
    return sum(n for n in range(limit) if n % 3 == 0 or n % 5 == 0)


@app.handler("flaky", retry=RetryPolicy(max_attempts=5, backoff="exponential", base=0.1))
async def flaky(run: RunContext) -> str:
    """What it raises is tried again by its policy; `Retry(after=...)` says when itself."""
    if run.attempt == 1:
        raise ConnectionError("the service is not there")
    if run.attempt == 2:
        raise Retry("it is there, and busy", after=0.2)
    return f"attempt {run.attempt} made it"


@app.handler("sleepy", timeout=0.5, retry=RetryPolicy(max_attempts=1))
async def sleepy() -> None:
    """Takes longer than it may: it is cancelled, and the run ends as timed_out."""
    await asyncio.sleep(60)


async def main(folder: Path) -> None:
    app.config = Fusee(f"sqlite:///{folder}/hello.db").config
    async with app.running():
        greeting = await app.enqueue("greet", {"name": "Ada"})
        digest = await app.enqueue(checksum, {"text": "fusee"})
        total = await app.enqueue(crunch, {"limit": 1000})
        retried = await app.enqueue("flaky")
        later = await app.enqueue("greet", {"name": "you, a second later"}, delay=1)
        too_slow = await app.enqueue("sleepy")
        once = await app.enqueue("greet", {"name": "once"}, idempotency_key="only-once")
        again = await app.enqueue("greet", {"name": "once"}, idempotency_key="only-once")

        print("greet:   ", await greeting.result())
        print("checksum:", (await digest.result())[:16], "...")
        print("crunch:  ", await total.result())
        print("flaky:   ", await retried.result())
        print("delayed: ", await later.result())
        try:
            await too_slow.result()
        except RunFailed as error:
            print("sleepy:  ", error.run.status)
        print("one key: ", "one run" if again.id == once.id else "two runs")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
