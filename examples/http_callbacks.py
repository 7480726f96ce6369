"""A service that takes work with 202 and calls back when it is done.

python examples/http_callbacks.py      runs both sides: the platform, and a little service that makes reports

Nothing of the platform is held while the service works: no worker, no connection. The run waits in the
database, and the service's answer, which carries the token of that one attempt, ends it.
"""

import asyncio
import hashlib
import hmac
import json
import socket
from collections.abc import Mapping

import aiohttp
from aiohttp import web

from fusee import Fusee, RetryPolicy
from fusee.config import load
from fusee.surfaces.rest.serving import ApiServer

# --- the service: all it knows of Fusee is what stands in the headers of a call -----------------------------

under_way: set[asyncio.Task[None]] = set()


async def take(request: web.Request) -> web.Response:
    """Accept the order at once; the work goes on behind it."""
    report = (await request.json())["report"]
    task = asyncio.create_task(make(report, request.headers.copy()))
    under_way.add(task)
    task.add_done_callback(under_way.discard)
    return web.json_response({"taken": report}, status=202)


async def make(report: str, headers: Mapping[str, str]) -> None:
    await asyncio.sleep(0.1)  # the work
    if report == "forgotten":
        return
    if report == "costs" and headers["X-Fusee-Attempt"] == "1":
        await answer(headers, {"status": "failed", "error": "the books are not closed", "retry_after": 0.1})
    else:
        await answer(headers, {"result": {"report": report, "pages": 12}})


async def answer(headers: Mapping[str, str], said: dict[str, object]) -> None:
    """The token says which attempt this is about; the signature, that nobody changed the body."""
    token, body = headers["X-Fusee-Callback-Token"], json.dumps(said).encode()
    signature = "sha256=" + hmac.new(token.encode(), body, hashlib.sha256).hexdigest()
    proof = {"X-Fusee-Callback-Token": token, "X-Fusee-Signature": signature}
    async with (
        aiohttp.ClientSession(headers={"Content-Type": "application/json", **proof}) as client,
        client.post(headers["X-Fusee-Callback-Url"], data=body) as taken,
    ):
        print("called back:", taken.status, (await taken.json())["status"])


# --- the platform, and who orders reports -------------------------------------------------------------------


async def main() -> None:
    service = web.AppRunner(web.Application())
    service.app.router.add_post("/reports", take)
    await service.setup()
    await web.TCPSite(service, "127.0.0.1", 0).start()
    reports = f"http://127.0.0.1:{service.addresses[0][1]}/reports"

    here = f"127.0.0.1:{free_port()}"
    settings = {
        "database": {"url": "sqlite://"},
        "api": {"bind_address": here, "public_url": f"http://{here}"},  # where services call back
        "executors": {"http": {"allow_private": ["127.0.0.1"]}},  # else only public addresses are called
        "dispatcher": {"schedule_interval_seconds": 0.1},
    }
    app = Fusee(config=load(env={}, overrides=settings))

    async def order(report: str, **terms: object) -> None:
        call = {"url": reports, "body": {"report": report}, "mode": "async", "callback_hmac": True, **terms}
        retry = RetryPolicy(max_attempts=2, on=("failed",))
        run = await app.enqueue("http", call, executor="http", retry=retry)
        ended = await app.runs.wait(run.id, timeout=30)
        print(f"{report}: {ended.status} at attempt {ended.attempt},", ended.result or ended.error)

    async with app:
        server = ApiServer(app.api())
        serving = asyncio.create_task(server.run())
        await server.started.wait()
        async with app.running():
            await order("sales")
            await order("costs")
            await order("forgotten", callback_timeout=0.5)
        server.stop()
        await serving
    await service.cleanup()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


if __name__ == "__main__":
    asyncio.run(main())
