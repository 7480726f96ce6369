"""Who may come in, and what they may do."""

from __future__ import annotations

import asyncio

import pytest

from fusee.access.service import KeyOperations, digest
from fusee.config import ApiConfig
from fusee.errors import ConfigError
from fusee.surfaces.rest.gate import refuse_open_bind
from fusee.surfaces.rest.keyring import FRESH, TRIES, Keyring
from fusee.surfaces.rest.problems import Problem

RUNS = "/api/v1/runs"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


# -- open: loopback and no key


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1:1", "[::1]:80", "LOCALHOST."])
async def test_a_local_caller_needs_no_key(served, host):
    assert (await served.ask("GET", RUNS, headers={"Host": host}))[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1", "localhost.evil", ""])
@pytest.mark.parametrize("path", [RUNS, "/metrics"])
async def test_a_name_pointed_at_loopback_is_refused(served, host, path):
    status, problem, _ = await served.ask("GET", path, headers={"Host": host})
    assert status == 403 and "localhost only" in problem["detail"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_a_page_of_another_origin_changes_nothing(served, headers):
    for method, path in (("POST", RUNS), ("POST", "/api/v1/queues/q/pause"), ("POST", "/api/v1/keys")):
        assert (await served.ask(method, path, json={"handler": "greet"}, headers=headers))[0] == 403
    assert await served.count() == 0


async def test_our_own_page_may(served):
    headers = {"Origin": served.url, "Sec-Fetch-Site": "same-origin"}
    assert (await served.ask("POST", RUNS, json={"handler": "greet"}, headers=headers))[0] == 201


# -- with keys


@pytest.mark.parametrize("role", [{}, {"role": "operator"}, {"role": "viewer"}])
async def test_the_first_key_must_be_an_admins(served, role):
    status, problem, _ = await served.ask("POST", "/api/v1/keys", json={"name": "x", **role})
    assert status == 409 and '"role": "admin"' in problem["detail"], problem
    _, listed, _ = await served.ask("GET", "/api/v1/keys")
    assert listed["items"] == [], "and the API is as open as before"
    _, admin, _ = await served.ask("POST", "/api/v1/keys", json={"name": "a", "role": "admin"})
    me = bearer(admin["key"])
    assert (await served.ask("POST", "/api/v1/keys", json={"name": "x", **role}, headers=me))[0] == 201


async def test_the_first_key_closes_the_door(served):
    status, made, _ = await served.ask("POST", "/api/v1/keys", json={"name": "ada", "role": "admin"})
    assert status == 201 and made["key"].startswith("fusee_")

    status, problem, headers = await served.ask("GET", RUNS)
    assert (status, headers["WWW-Authenticate"]) == (401, 'Bearer realm="fusee"')
    assert "fusee key create" in problem["detail"]
    for wrong in (bearer("fusee_wrong"), {"Authorization": "Basic YTpi"}, {"X-API-Key": "é" * 3}):
        assert (await served.ask("GET", RUNS, headers=wrong))[0] == 401

    assert (await served.ask("GET", RUNS, headers=bearer(made["key"])))[0] == 200
    assert (await served.ask("GET", RUNS, headers={"X-API-Key": made["key"]}))[0] == 200
    # A key is not sent by itself, so a page that has one may use it, from anywhere and under any name.
    foreign = bearer(made["key"]) | {"Origin": "https://ops.example", "Host": "ops.example"}
    assert (await served.ask("POST", RUNS, json={"handler": "greet"}, headers=foreign))[0] == 201
    # Probes need none.
    for path in ("/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"):
        assert (await served.ask("GET", path))[0] == 200

    _, listed, _ = await served.ask("GET", "/api/v1/keys", headers=bearer(made["key"]))
    assert [(key["name"], key["role"]) for key in listed["items"]] == [("ada", "admin")]
    assert made["key"] not in str(listed) and digest(made["key"]) not in str(listed)


async def test_a_revoked_key_is_out_at_once(served):
    _, admin, _ = await served.ask("POST", "/api/v1/keys", json={"name": "a", "role": "admin"})
    me = bearer(admin["key"])
    _, other, _ = await served.ask("POST", "/api/v1/keys", json={"name": "b", "role": "viewer"}, headers=me)
    assert (await served.ask("GET", RUNS, headers=bearer(other["key"])))[0] == 200
    assert (await served.ask("DELETE", f"/api/v1/keys/{other['id']}", headers=me))[0] == 204
    assert (await served.ask("GET", RUNS, headers=bearer(other["key"])))[0] == 401
    assert (await served.ask("DELETE", f"/api/v1/keys/{other['id']}", headers=me))[0] == 404


async def test_roles(served):
    keys = {}
    for role in ("viewer", "operator", "admin"):
        keys[role] = bearer((await served.app.keys.create(role, role))[1])
    allowed = {
        ("GET", RUNS): "viewer",
        ("GET", "/api/v1/workers"): "viewer",
        ("GET", "/api/v1/workers/w"): "viewer",
        ("POST", "/api/v1/workers/w/drain"): "operator",
        ("GET", "/api/v1/queues"): "viewer",
        ("POST", RUNS): "operator",
        ("POST", f"{RUNS}/1/cancel"): "operator",
        ("POST", f"{RUNS}/1/retry"): "operator",
        ("PUT", "/api/v1/queues/q"): "operator",
        ("PUT", "/api/v1/queues/q/strategy"): "operator",
        ("POST", "/api/v1/queues/q/pause"): "operator",
        ("POST", "/api/v1/queues/q/resume"): "operator",
        ("GET", "/api/v1/keys"): "admin",
        ("POST", "/api/v1/keys"): "admin",
        ("DELETE", "/api/v1/keys/99"): "admin",
    }
    roles = list(keys)
    for (method, path), least in allowed.items():
        for role, headers in keys.items():
            status, problem, _ = await served.ask(method, path, headers=headers)
            refused = roles.index(role) < roles.index(least)
            assert (status == 403) == refused, (method, path, role)
            if refused:
                assert f"needs the role {least}" in problem["detail"]


async def test_a_configured_digest_is_an_admin(serving):
    async with serving(api={"keys": [digest("a-long-random-secret")]}) as served:
        assert (await served.ask("GET", "/api/v1/keys"))[0] == 401
        assert (await served.ask("GET", "/api/v1/keys", headers=bearer("a-long-random-secret")))[0] == 200


async def test_a_key_acts_in_its_own_namespace_only(served):
    _, ours, _ = await served.ask("POST", RUNS, json={"handler": "greet"})
    elsewhere = KeyOperations(served.app.store.for_namespace("other").api_keys)
    theirs = bearer((await elsewhere.create("them", "admin"))[1])
    for method, path in (
        ("GET", f"{RUNS}/{ours['id']}"),
        ("GET", f"{RUNS}/{ours['id']}/wait"),
        ("GET", f"{RUNS}/{ours['id']}/events"),
        ("POST", f"{RUNS}/{ours['id']}/cancel"),
        ("POST", f"{RUNS}/{ours['id']}/retry"),
    ):
        assert (await served.ask(method, path, headers=theirs))[0] == 404
    assert (await served.ask("GET", RUNS, headers=theirs))[1]["items"] == []
    # A handler of ours is not one of theirs: our worker does not serve them.
    assert (await served.ask("POST", RUNS, json={"handler": "greet"}, headers=theirs))[0] == 422
    status, run, _ = await served.ask(
        "POST", f"{RUNS}?allow_unknown=true", json={"handler": "x"}, headers=theirs
    )
    assert status == 201
    _, run, _ = await served.ask("GET", f"{RUNS}/{run['id']}", headers=theirs)
    assert run["namespace"] == "other"
    _, keys, _ = await served.ask("GET", "/api/v1/keys", headers=theirs)
    assert [key["name"] for key in keys["items"]] == ["them"]


# -- beyond loopback


@pytest.mark.parametrize("address", ["0.0.0.0:8080", "[::]:8080", "10.1.2.3:8080", "fusee.example:8080"])
def test_no_open_door_to_a_network(address):
    config = ApiConfig(bind_address=address)
    with pytest.raises(ConfigError, match="fusee key create NAME"):
        refuse_open_bind(config, any_keys=False)
    refuse_open_bind(config, any_keys=True)


@pytest.mark.parametrize("address", ["127.0.0.1:8080", "localhost:0", "[::1]:8080", "127.9.9.9:1"])
def test_loopback_may_be_open(address):
    refuse_open_bind(ApiConfig(bind_address=address), any_keys=False)


async def test_a_server_on_all_addresses_wants_a_key(serving):
    with pytest.raises(ConfigError, match="no API key"):
        async with serving(api={"bind_address": "0.0.0.0:0"}):
            pass
    async with serving(api={"bind_address": "0.0.0.0:0", "keys": [digest("k" * 40)]}) as served:
        assert (await served.ask("GET", "/metrics"))[0] == 401
        assert (await served.ask("GET", "/metrics", headers=bearer("k" * 40)))[0] == 200
        assert (await served.ask("GET", "/healthz"))[0] == 200


async def test_the_last_key_revoked_does_not_open_a_network(serving):
    """On loopback without keys everyone local is an admin; elsewhere nobody is anyone."""
    async with serving(api={"bind_address": "0.0.0.0:0", "keys": [digest("k" * 40)]}) as served:
        served.server.services.operations("default").keys.configured = frozenset()
        assert (await served.ask("GET", RUNS))[0] == 401


# -- guessing


class FakeKeys:
    def __init__(self) -> None:
        self.asked = 0
        self.good = {"good"}

    async def any(self) -> bool:
        return True

    async def caller(self, key: str):
        self.asked += 1
        return object() if key in self.good else None


async def test_guessing_is_slowed_and_good_keys_go_on():
    now = [0.0]
    keys = FakeKeys()
    ring = Keyring(keys, lambda: now[0])
    assert await ring.caller("good", "10.0.0.1") is not None
    for n in range(int(TRIES)):
        assert await ring.caller(f"bad{n}", "10.0.0.1") is None
    with pytest.raises(Problem) as refused:
        await ring.caller("bad", "10.0.0.1")
    assert refused.value.status == 429
    asked = keys.asked
    now[0] += FRESH
    assert await ring.caller("good", "10.0.0.1") is not None  # behind the same proxy
    assert keys.asked == asked + 1
    assert await ring.caller("bad", "10.0.0.2") is None  # another address
    now[0] += 60
    assert await ring.caller("bad", "10.0.0.1") is None


async def test_a_key_is_looked_up_once_a_second():
    now = [0.0]
    keys = FakeKeys()
    ring = Keyring(keys, lambda: now[0])
    await asyncio.gather(*(ring.caller("good", "a") for _ in range(3)))
    asked = keys.asked
    await ring.caller("good", "a")
    assert keys.asked == asked
    keys.good.clear()
    now[0] += FRESH
    assert await ring.caller("good", "a") is None
