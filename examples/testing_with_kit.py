"""How to test handlers: a private database in memory, a clock that you move, nothing in the background.

pytest examples/testing_with_kit.py      (pip install pytest pytest-asyncio)
python examples/testing_with_kit.py      the same
"""

import subprocess
import sys

import pytest
import pytest_asyncio

from fusee import Abandon, Fusee, RetryPolicy
from fusee.testing import TestKit

# --- what is tested: in your project, in a module of its own

app = Fusee(config=Fusee("sqlite://").config)
sent: list[str] = []


@app.handler("remind", retry=RetryPolicy(max_attempts=3, backoff="fixed", base=60, jitter=0))
async def remind(user: str) -> str:
    if user == "nobody":
        raise Abandon("there is no such user")
    if user == "busy" and "busy" not in sent:
        sent.append("busy")
        raise ConnectionError("the mail server is busy")
    sent.append(user)
    return f"reminded {user}"


# --- the tests


@pytest_asyncio.fixture
async def kit():
    sent.clear()
    async with TestKit(app) as kit:
        yield kit


@pytest.mark.asyncio
async def test_a_reminder_is_sent_when_its_time_has_come(kit: TestKit) -> None:
    run = await app.enqueue("remind", {"user": "ada"}, delay=3600)
    await kit.run_until_idle()
    assert (await kit.run(run)).status == "delayed"

    kit.clock.tick(hours=1)
    await kit.run_until_idle()
    assert (await kit.run(run)).result == "reminded ada"
    assert sent == ["ada"]


@pytest.mark.asyncio
async def test_a_busy_server_is_tried_again_after_a_minute(kit: TestKit) -> None:
    run = await app.enqueue("remind", {"user": "busy"})
    await kit.run_until_idle()
    waiting = await kit.run(run)
    assert (waiting.status, waiting.attempt) == ("delayed", 1)

    kit.clock.tick(minutes=1)
    await kit.run_until_idle()
    ended = await kit.run(run)
    assert (ended.status, ended.attempt) == ("succeeded", 2)


@pytest.mark.asyncio
async def test_an_unknown_user_is_given_up_at_once(kit: TestKit) -> None:
    run = await app.enqueue("remind", {"user": "nobody"})
    await kit.run_until_idle()
    ended = await kit.run(run)
    assert (ended.status, ended.attempt) == ("failed", 1)
    assert "no such user" in (ended.error or "")


if __name__ == "__main__":
    sys.exit(subprocess.call([sys.executable, "-m", "pytest", "-q", __file__]))
