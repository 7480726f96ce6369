"""Runs over REST: one, many, a stream of them; looking, waiting, following, stopping, doing again."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

RUNS = "/api/v1/runs"
NDJSON = {"Content-Type": "application/x-ndjson"}


def lines(*runs: Any) -> bytes:
    return b"".join(json.dumps(run).encode() + b"\n" for run in runs)


async def test_one_run_is_accepted_executed_and_shown(working):
    status, body, headers = await working.ask(
        "POST", RUNS, json={"handler": "greet", "payload": {"name": "Ada"}}
    )
    assert (status, body["created"]) == (201, True)
    assert headers["Location"] == f"{RUNS}/{body['id']}"

    status, run, _ = await working.ask("GET", f"{RUNS}/{body['id']}/wait?timeout=20s")
    assert (status, run["status"], run["result"]) == (200, "succeeded", "hello Ada")
    assert datetime.fromisoformat(run["finished_at"]).tzinfo == UTC
    assert len(run["finished_at"]) == len("2030-01-31T09:00:00.000000Z")


async def test_everything_a_run_can_be_given(served):
    due = datetime(2031, 5, 1, 12, 0, 0, 123456, UTC)
    wanted = {
        "handler": "greet",
        "payload": {"name": "名前 \u0000 ‮", "n": [1, 2.5, None, True]},
        "queue": "mail/eu",
        "priority": 7,
        "due_at": due.astimezone().isoformat(),
        "timeout": "2m",
        "retry": {"max_attempts": 5, "base": "1m30s", "on": ["failed"]},
        "idempotency_key": "order-7",
    }
    _, accepted, _ = await served.ask("POST", RUNS, json=wanted)
    _, run, _ = await served.ask("GET", f"{RUNS}/{accepted['id']}")
    assert run["payload"] == wanted["payload"]
    assert (run["queue"], run["priority"], run["status"]) == ("mail/eu", 7, "delayed")
    assert run["due_at"] == "2031-05-01T12:00:00.123456Z"
    assert run["timeout"] == 120
    assert run["retry"] == {"max_attempts": 5, "base": 90.0, "on": ["failed"]}
    assert run["idempotency_key"] == "order-7"


async def test_a_delay_is_seconds_or_text(served):
    for delay in (90, 90.0, "90s", "1m30s"):
        _, accepted, _ = await served.ask("POST", RUNS, json={"handler": "greet", "delay": delay})
        _, run, _ = await served.ask("GET", f"{RUNS}/{accepted['id']}")
        waited = datetime.fromisoformat(run["due_at"]) - datetime.fromisoformat(run["created_at"])
        assert waited == timedelta(seconds=90)


async def test_an_array_is_all_or_none(served):
    status, body, _ = await served.ask("POST", RUNS, json=[{"handler": "greet"}] * 3)
    assert status == 201
    assert [one["created"] for one in body] == [True] * 3
    assert len({one["id"] for one in body}) == 3

    status, body, _ = await served.ask("POST", RUNS, json=[{"handler": "greet"}, {"handler": "gret"}])
    assert (status, body["index"], body["field"]) == (422, 1, "handler")
    assert "run 1 of the array" in body["detail"] and "Did you mean 'greet'?" in body["detail"]
    assert await served.count() == 3


async def test_an_array_over_the_limit_says_what_to_do(serving):
    async with serving(api={"max_runs_per_request": 2}) as served:
        status, body, _ = await served.ask("POST", RUNS, json=[{"handler": "greet"}] * 3)
        assert status == 413 and "application/x-ndjson" in body["detail"]
        assert await served.count() == 0


async def test_a_handler_no_worker_has_is_refused_unless_allowed(served):
    status, body, _ = await served.ask("POST", RUNS, json={"handler": "later"})
    assert (status, body["field"]) == (422, "handler")
    status, _, _ = await served.ask("POST", f"{RUNS}?allow_unknown=true", json={"handler": "later"})
    assert status == 201


# -- idempotency


async def test_a_repeated_key_gives_the_same_run(served):
    key = {"Idempotency-Key": "order-1"}
    first = await served.ask("POST", RUNS, json={"handler": "greet"}, headers=key)
    again = await served.ask("POST", RUNS, json={"handler": "greet"}, headers=key)
    assert (first[0], again[0]) == (201, 200)
    assert again[1] == {"id": first[1]["id"], "created": False}
    other = await served.ask("POST", RUNS, json={"handler": "fail"}, headers=key)
    assert other[0] == 409 and "use a new key" in other[1]["detail"]
    assert await served.count() == 1


async def test_a_repeated_array_gets_the_same_runs(served):
    key = {"Idempotency-Key": "batch"}
    _, first, _ = await served.ask("POST", RUNS, json=[{"handler": "greet"}] * 2, headers=key)
    _, again, _ = await served.ask("POST", RUNS, json=[{"handler": "greet"}] * 2, headers=key)
    assert [one["id"] for one in first] == [one["id"] for one in again]


async def test_a_longer_stream_continues_a_shorter_one(served):
    headers = {"Idempotency-Key": "batch"} | NDJSON
    _, first, _ = await served.ask("POST", RUNS, data=lines(*[{"handler": "greet"}] * 2), headers=headers)
    status, body, _ = await served.ask("POST", RUNS, data=lines(*[{"handler": "greet"}] * 5), headers=headers)
    assert (status, body["accepted"], body["created"]) == (201, 5, 3)
    assert body["first_id"] == first["first_id"]


async def test_a_key_that_cannot_hold_the_index_is_refused_at_once(served):
    headers = {"Idempotency-Key": "k" * 200}
    assert (await served.ask("POST", RUNS, json={"handler": "greet"}, headers=headers))[0] == 201
    status, body, _ = await served.ask(
        "POST", RUNS, data=lines({"handler": "greet"}), headers=headers | NDJSON
    )
    assert (status, body["field"]) == (422, "Idempotency-Key")


# -- streams


async def test_a_stream_is_taken_in_chunks(served):
    async def body():
        text = lines(*[{"handler": "greet", "payload": {"name": str(n)}} for n in range(2500)])
        for start in range(0, len(text), 1000):  # cuts lines anywhere
            yield text[start : start + 1000]

    status, body_, _ = await served.ask("POST", RUNS, data=body(), headers=NDJSON)
    assert (status, body_["accepted"], body_["created"]) == (201, 2500, 2500)
    assert await served.count() == 2500
    assert (await served.app.store.runs.run(body_["last_id"])).payload == {"name": "2499"}


async def test_a_bad_line_names_itself_and_keeps_what_came_before(served):
    good = {"handler": "greet"}
    text = lines(*[good] * 1200) + b"\n  \n" + lines({"handler": "greet", "prority": 1}, good)
    status, body, _ = await served.ask("POST", RUNS, data=text, headers=NDJSON)
    assert (status, body["line"], body["accepted"], body["created"]) == (422, 1203, 1200, 1200)
    assert "line 1203" in body["detail"] and "did you mean 'priority'?" in body["detail"]
    assert await served.count() == 1200


async def test_a_stream_that_was_cut_continues_with_its_key(served):
    key = NDJSON | {"Idempotency-Key": "import-7"}
    good = [{"handler": "greet", "payload": {"n": n}} for n in range(10)]
    status, body, _ = await served.ask("POST", RUNS, data=lines(*good[:4]) + b'{"handler":', headers=key)
    assert (status, body["line"], body["accepted"]) == (400, 5, 4)
    status, body, _ = await served.ask("POST", RUNS, data=lines(*good), headers=key)
    assert (status, body["accepted"], body["created"]) == (201, 10, 6)
    assert await served.count() == 10


async def test_one_endless_line_is_cut_off(served):
    async def body():
        for _ in range(40):
            yield b"x" * 65536

    status, answer, _ = await served.ask("POST", RUNS, data=body(), headers=NDJSON)
    assert (status, answer["line"]) == (413, 1)


async def test_a_stream_may_be_larger_than_a_body(serving):
    async with serving(api={"max_body": 4096}) as served:
        text = lines(*[{"handler": "greet", "payload": {"name": "x" * 200}}] * 100)
        assert (await served.ask("POST", RUNS, data=text, headers=NDJSON))[0] == 201
        assert (await served.ask("POST", RUNS, json=[{"handler": "greet"}] * 1000))[0] == 413
        assert await served.count() == 100


# -- looking


async def test_pages_show_every_run_once_newest_first(served):
    await served.ask("POST", RUNS, json=[{"handler": "greet"}] * 7)
    seen, cursor = [], None
    while True:
        query = {"limit": "3"} | ({"cursor": cursor} if cursor else {})
        _, page, _ = await served.ask("GET", RUNS, params=query)
        seen += [run["id"] for run in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == sorted(seen, reverse=True) and len(seen) == 7
    assert "payload" not in page["items"][0]


async def test_filters(served):
    await served.ask(
        "POST",
        RUNS,
        json=[{"handler": "greet"}, {"handler": "fail", "queue": "q"}, {"handler": "greet", "delay": 60}],
    )

    async def found(query: str) -> list[str]:
        _, page, _ = await served.ask("GET", f"{RUNS}?{query}")
        return [f"{run['handler']} {run['status']}" for run in page["items"]]

    assert await found("status=delayed") == ["greet delayed"]
    assert len(await found("status=delayed&status=pending")) == 3
    assert await found("handler=fail") == ["fail pending"]
    assert await found("queue=q") == ["fail pending"]
    assert await found("status=failed") == []


async def test_a_run_shows_the_attempts_that_did_not_end_it(working):
    run = {"handler": "fail", "retry": {"max_attempts": 2, "base": 0}}
    _, accepted, _ = await working.ask("POST", RUNS, json=run)
    _, run, _ = await working.ask("GET", f"{RUNS}/{accepted['id']}/wait?timeout=25")
    assert run["status"] == "failed" and "no luck" in run["error"]
    assert run["attempt"] == 2
    assert [(one["attempt"], one["end"]) for one in run["attempts"]] == [(1, "failed")]


# -- stopping and doing again


async def test_cancel_before_and_while_it_runs(working):
    _, delayed, _ = await working.ask("POST", RUNS, json={"handler": "greet", "delay": "1h"})
    status, run, _ = await working.ask(
        "POST", f"{RUNS}/{delayed['id']}/cancel", json={"reason": "not needed"}
    )
    assert (status, run["status"], run["reason"]) == (200, "canceled", "not needed")

    _, hanging, _ = await working.ask("POST", RUNS, json={"handler": "hang"})
    await working.hanging.wait()
    status, run, _ = await working.ask("POST", f"{RUNS}/{hanging['id']}/cancel")
    assert status == 202 or run["status"] == "canceled"
    _, run, _ = await working.ask("GET", f"{RUNS}/{hanging['id']}/wait")
    assert run["status"] == "canceled"


async def test_cancel_of_what_has_ended_and_retry_of_what_has_not(working):
    _, accepted, _ = await working.ask("POST", RUNS, json={"handler": "greet"})
    await working.ask("GET", f"{RUNS}/{accepted['id']}/wait")
    assert (await working.ask("POST", f"{RUNS}/{accepted['id']}/cancel"))[0] == 409

    status, again, headers = await working.ask("POST", f"{RUNS}/{accepted['id']}/retry")
    assert (status, headers["Location"]) == (201, f"{RUNS}/{again['id']}")
    assert (await working.ask("GET", f"{RUNS}/{again['id']}"))[1]["origin_id"] == accepted["id"]

    _, delayed, _ = await working.ask("POST", RUNS, json={"handler": "greet", "delay": 60})
    assert (await working.ask("POST", f"{RUNS}/{delayed['id']}/retry"))[0] == 409


# -- waiting and following


async def test_a_wait_that_runs_out_of_time_says_how_it_stands(served):
    _, accepted, _ = await served.ask("POST", RUNS, json={"handler": "greet"})
    status, run, _ = await served.ask("GET", f"{RUNS}/{accepted['id']}/wait?timeout=10ms")
    assert (status, run["status"]) == (202, "pending")
    assert (await served.ask("GET", f"{RUNS}/{accepted['id']}/wait?timeout=soon"))[0] == 422


async def test_following_a_run_to_its_end(working):
    _, accepted, _ = await working.ask("POST", RUNS, json={"handler": "hang"})
    kinds = []
    async with working.client.get(f"{RUNS}/{accepted['id']}/events") as stream:
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        async for line in stream.content:
            if line.startswith(b"data:"):
                state = json.loads(line[5:])
                kinds.append(state["status"])
                if state["status"] == "running" and state["cancel_requested_at"] is None:
                    await working.ask("POST", f"{RUNS}/{accepted['id']}/cancel")
    assert kinds[-1] == "canceled" and "running" in kinds
    # A browser comes back by itself; this answer makes it stop.
    status, _, _ = await working.ask(
        "GET", f"{RUNS}/{accepted['id']}/events", headers={"Last-Event-ID": "end"}
    )
    assert status == 204


async def test_those_who_wait_are_let_go_when_the_server_stops(serving):
    async with serving() as served:
        _, accepted, _ = await served.ask("POST", RUNS, json={"handler": "greet"})
        waiting = asyncio.create_task(served.ask("GET", f"{RUNS}/{accepted['id']}/wait?timeout=25s"))
        async with served.client.get(f"{RUNS}/{accepted['id']}/events") as stream:
            await stream.content.readuntil(b"data:")
            served.server.stop()
            await stream.read()
        assert (await waiting)[0] == 202


async def test_too_many_followers_are_told_to_come_later(served):
    from fusee.runs.rest.live import Followers

    served.server._server.config.app.state.followers = Followers(0)
    _, accepted, _ = await served.ask("POST", RUNS, json={"handler": "greet"})
    for path in ("wait", "events"):
        status, body, headers = await served.ask("GET", f"{RUNS}/{accepted['id']}/{path}")
        assert (status, body["status"], headers["Retry-After"]) == (429, 429, "5")


async def test_a_plain_run_that_is_retried_runs_again(working: Any) -> None:
    _, first, _ = await working.ask(
        "POST", "/api/v1/runs", json={"handler": "greet", "payload": {"name": "Ada"}}
    )
    await working.ask("GET", f"/api/v1/runs/{first['id']}/wait?timeout=30")
    status, again, _ = await working.ask("POST", f"/api/v1/runs/{first['id']}/retry")
    assert status == 201
    status, run, _ = await working.ask("GET", f"/api/v1/runs/{again['id']}/wait?timeout=30")
    assert (status, run["status"], run["result"], run["requires"]) == (200, "succeeded", "hello Ada", {})
