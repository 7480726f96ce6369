"""Who may come in, and what they may do."""

from __future__ import annotations

import asyncio

import pytest

from fusee.access.authenticator import FRESH, TRIES, Authenticator
from fusee.access.service import KeyOperations, digest
from fusee.config import ApiConfig, TlsConfig
from fusee.errors import ConfigError, Denied, TooManyTries
from fusee.surfaces.rest.gate import refuse_open_bind

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
        refuse_open_bind(config, TlsConfig(), any_keys=False)
    with pytest.raises(ConfigError, match=r"set tls.cert_file and tls.key_file, or.*api.trusted_proxies"):
        refuse_open_bind(config, TlsConfig(), any_keys=True)
    refuse_open_bind(config, TlsConfig(cert_file="c.pem", key_file="k.pem"), any_keys=True)
    proxies = {"trusted_proxies": ["10.0.0.7"]}
    refuse_open_bind(ApiConfig(bind_address=address, **proxies), TlsConfig(), any_keys=True)


@pytest.mark.parametrize("address", ["127.0.0.1:8080", "localhost:0", "[::1]:8080", "127.9.9.9:1"])
def test_loopback_may_be_open(address):
    refuse_open_bind(ApiConfig(bind_address=address), TlsConfig(), any_keys=False)


async def test_a_server_on_all_addresses_wants_a_key(serving):
    with pytest.raises(ConfigError, match="no API key"):
        async with serving(api={"bind_address": "0.0.0.0:0"}):
            pass
    proxied = {"bind_address": "0.0.0.0:0", "trusted_proxies": ["10.0.0.7"]}
    async with serving(api={**proxied, "keys": [digest("k" * 40)]}) as served:
        assert (await served.ask("GET", "/metrics"))[0] == 401
        assert (await served.ask("GET", "/metrics", headers=bearer("k" * 40)))[0] == 200
        assert (await served.ask("GET", "/healthz"))[0] == 200


async def test_the_last_key_revoked_does_not_open_a_network(serving):
    """On loopback without keys everyone local is an admin; elsewhere nobody is anyone."""
    proxied = {"bind_address": "0.0.0.0:0", "trusted_proxies": ["10.0.0.7"]}
    async with serving(api={**proxied, "keys": [digest("k" * 40)]}) as served:
        served.server.services.authenticator.keys.configured.clear()
        assert (await served.ask("GET", RUNS))[0] == 401


# -- guessing


class FakeKeys:
    def __init__(self) -> None:
        self.asked = 0
        self.good = {"good"}

    async def principal(self, key: str):
        self.asked += 1
        return (object(), None) if key in self.good else None


async def refused(door: Authenticator, key: str, address: str) -> bool:
    try:
        await door.by_key(key, address, "rest")
    except Denied:
        return True
    return False


async def test_guessing_is_slowed_and_good_keys_go_on():
    now = [0.0]
    keys = FakeKeys()
    door = Authenticator(keys, "default", now=lambda: now[0])
    assert not await refused(door, "good", "10.0.0.1")
    for n in range(int(TRIES)):
        assert await refused(door, f"bad{n}", "10.0.0.1")
    with pytest.raises(TooManyTries):
        await door.by_key("bad", "10.0.0.1", "grpc")  # the surfaces count together
    asked = keys.asked
    now[0] += FRESH
    assert not await refused(door, "good", "10.0.0.1")  # behind the same proxy
    assert keys.asked == asked + 1
    assert await refused(door, "bad", "10.0.0.2")  # another address
    now[0] += 60
    assert await refused(door, "bad", "10.0.0.1")


async def test_too_many_wrong_keys_are_a_429(served):
    await served.app.keys.create("a", "admin")
    statuses = [
        (await served.ask("GET", RUNS, headers=bearer(f"wrong{n}")))[0] for n in range(int(TRIES) + 1)
    ]
    assert statuses == [401] * int(TRIES) + [429]


async def test_a_key_is_looked_up_once_a_second():
    now = [0.0]
    keys = FakeKeys()
    door = Authenticator(keys, "default", now=lambda: now[0])
    await asyncio.gather(*(door.by_key("good", "a", "rest") for _ in range(3)))
    asked = keys.asked
    await door.by_key("good", "a", "rest")
    assert keys.asked == asked
    keys.good.clear()
    now[0] += FRESH
    assert await refused(door, "good", "a")


# -- a door that stays shut


@pytest.mark.parametrize(
    "header",
    ["X-Forwarded-For", "X-Forwarded-Proto", "Forwarded", "Via", "X-Real-IP", "X-Forwarded-Any"],
)
async def test_a_forwarded_request_is_never_local(served, header):
    for path in (RUNS, "/metrics"):
        status, problem, _ = await served.ask("GET", path, headers={header: "127.0.0.1"})
        assert status == 401 and "forwarded" in problem["detail"], path
    _, made, _ = await served.ask("POST", "/api/v1/keys", json={"name": "a", "role": "admin"})
    through = bearer(made["key"]) | {header: "10.1.1.1"}
    assert (await served.ask("GET", RUNS, headers=through))[0] == 200


async def test_revoking_the_last_key_does_not_open_the_door_again(served):
    _, made, _ = await served.ask("POST", "/api/v1/keys", json={"name": "a", "role": "admin"})
    me = bearer(made["key"])
    assert (await served.ask("DELETE", f"/api/v1/keys/{made['id']}", headers=me))[0] == 204
    assert (await served.ask("POST", "/api/v1/keys", json={"name": "b", "role": "admin"}))[0] == 401
    assert (await served.ask("GET", RUNS))[0] == 401
    # Who has the database can always create a key.
    _, key = await served.app.keys.create("again", "admin")
    assert (await served.ask("GET", RUNS, headers=bearer(key)))[0] == 200


async def test_auth_local_viewer_looks_only(serving):
    async with serving(auth={"local": "viewer"}) as served:
        assert (await served.ask("GET", RUNS))[0] == 200
        assert (await served.ask("POST", RUNS, json={"handler": "greet"}))[0] == 403
        assert (await served.ask("POST", "/api/v1/keys", json={"name": "a", "role": "admin"}))[0] == 403


async def test_auth_local_off_wants_a_key_from_the_start(serving):
    async with serving(auth={"local": "off"}) as served:
        assert (await served.ask("GET", RUNS))[0] == 401
        _, key = await served.app.keys.create("a", "viewer")
        assert (await served.ask("GET", RUNS, headers=bearer(key)))[0] == 200


async def test_a_configured_key_has_its_stated_role(serving):
    async with serving(api={"keys": [f"viewer:{digest('v' * 40)}"]}) as served:
        looks = bearer("v" * 40)
        assert (await served.ask("GET", RUNS, headers=looks))[0] == 200
        assert (await served.ask("POST", RUNS, json={"handler": "greet"}, headers=looks))[0] == 403


# -- keys with grants, an end, and a successor


async def test_a_grant_opens_another_namespace_by_header_and_by_path(served):
    _, key = await served.app.keys.create("both", "operator", grants={"billing": "viewer"})
    _, alone = await served.app.keys.create("alone", "admin")
    theirs = served.app.store.for_namespace("billing")
    _, other = await KeyOperations(theirs.api_keys).create("owner", "operator")
    _, run, _ = await served.ask(
        "POST", f"{RUNS}?allow_unknown=true", json={"handler": "theirs"}, headers=bearer(other)
    )
    there = bearer(key) | {"X-Fusee-Namespace": "billing"}
    for path, headers in (
        (f"{RUNS}/{run['id']}", there),
        (f"/api/v1/namespaces/billing/runs/{run['id']}", bearer(key)),
        (f"/api/v1/namespaces/billing/runs/{run['id']}", there),
    ):
        status, seen, _ = await served.ask("GET", path, headers=headers)
        assert (status, seen["namespace"]) == (200, "billing"), path
        refused = bearer(alone) | ({"X-Fusee-Namespace": "billing"} if headers is there else {})
        status, problem, _ = await served.ask("GET", path, headers=refused)
        assert status == 403 and "no role in namespace 'billing'" in problem["detail"]
    assert (await served.ask("GET", f"{RUNS}/{run['id']}", headers=bearer(key)))[0] == 404
    changed = await served.ask("POST", f"{RUNS}/{run['id']}/cancel", headers=there)
    assert changed[0] == 403, "a viewer there"
    mixed = bearer(key) | {"X-Fusee-Namespace": "default"}
    assert (await served.ask("GET", "/api/v1/namespaces/billing/runs", headers=mixed))[0] == 422
    # A namespace that does not exist is refused in the same words.
    _, one, _ = await served.ask("GET", "/api/v1/namespaces/nowhere/runs", headers=bearer(key))
    assert "no role in namespace 'nowhere'" in one["detail"]


async def test_nobody_grants_more_than_they_have(served):
    _, admin = await served.app.keys.create("admin", "admin")
    _, platform = await served.app.keys.create("root", "admin", grants={"*": "platform"})
    for name, grants in (("x", {"billing": "viewer"}), ("y", {"*": "platform"})):
        body = {"name": name, "grants": grants}
        assert (await served.ask("POST", "/api/v1/keys", json=body, headers=bearer(admin)))[0] == 403
        assert (await served.ask("POST", "/api/v1/keys", json=body, headers=bearer(platform)))[0] == 201
    for grants in ({"billing": "emperor"}, {"*": "admin"}, {"bad name!": "viewer"}, {"default": "viewer"}):
        body = {"name": "z", "role": "admin", "grants": grants}
        status, problem, _ = await served.ask("POST", "/api/v1/keys", json=body, headers=bearer(platform))
        assert (status, problem["field"]) == (422, "grants"), grants


async def test_names_are_unique_and_a_key_can_be_rotated(served):
    _, admin, _ = await served.ask("POST", "/api/v1/keys", json={"name": "a", "role": "admin"})
    me = bearer(admin["key"])
    status, problem, _ = await served.ask("POST", "/api/v1/keys", json={"name": "a"}, headers=me)
    assert status == 409 and "has the name 'a'" in problem["detail"]
    _, old, _ = await served.ask("POST", "/api/v1/keys", json={"name": "b", "role": "viewer"}, headers=me)
    path = f"/api/v1/keys/{old['id']}/rotate"
    status, new, _ = await served.ask("POST", path, headers=me)
    assert (status, new["name"], new["role"]) == (201, "b", "viewer") and new["key"] != old["key"]
    for key in (old, new):
        assert (await served.ask("GET", RUNS, headers=bearer(key["key"])))[0] == 200
    path = f"/api/v1/keys/{new['id']}/rotate"
    _, last, _ = await served.ask("POST", path, json={"overlap": 0}, headers=me)
    assert (await served.ask("GET", RUNS, headers=bearer(new["key"])))[0] == 401
    assert (await served.ask("GET", RUNS, headers=bearer(last["key"])))[0] == 200
    assert (await served.ask("POST", path, json={"overlap": -1}, headers=me))[0] == 422
    keyed, path = me | {"Idempotency-Key": "rotate-once"}, f"/api/v1/keys/{last['id']}/rotate"
    assert (await served.ask("POST", path, headers=keyed))[0] == 201
    status, problem, _ = await served.ask("POST", path, headers=keyed)
    assert status == 409 and "under this idempotency key" in problem["detail"]
    path = f"/api/v1/keys/{new['id']}/rotate"
    assert (await served.ask("POST", path, headers=me))[0] == 404


async def test_a_key_shows_how_it_begins_when_it_ends_and_when_it_was_used(served):
    _, admin, _ = await served.ask("POST", "/api/v1/keys", json={"name": "a", "role": "admin"})
    me = bearer(admin["key"])
    body = {"name": "short", "expires_in": 3600}
    await served.ask("POST", "/api/v1/keys", json=body, headers=me)
    _, listed, _ = await served.ask("GET", "/api/v1/keys", headers=me)
    first, second = listed["items"]
    assert admin["key"].startswith(first["prefix"]) and len(first["prefix"]) == 12
    assert first["last_used_at"] is not None and second["last_used_at"] is None
    assert first["expires_at"] is None and second["expires_at"] > second["created_at"]
    body = {"name": "no", "expires_in": 0}
    assert (await served.ask("POST", "/api/v1/keys", json=body, headers=me))[0] == 422


async def test_me_tells_who_one_is(served):
    status, me, _ = await served.ask("GET", "/api/v1/me")
    assert (status, me["kind"], me["role"], me["namespace"]) == (200, "local", "admin", "default")
    _, key = await served.app.keys.create("deploy", "viewer", grants={"billing": "operator"})
    _, me, _ = await served.ask("GET", "/api/v1/me", headers=bearer(key))
    assert (me["name"], me["kind"], me["role"]) == ("deploy", "api key", "viewer")
    assert me["grants"] == {"default": "viewer", "billing": "operator"}
    assert "runs.list" in me["actions"] and "runs.submit" not in me["actions"]
    there = bearer(key) | {"X-Fusee-Namespace": "billing"}
    _, me, _ = await served.ask("GET", "/api/v1/me", headers=there)
    assert (me["namespace"], me["role"]) == ("billing", "operator") and "runs.submit" in me["actions"]


async def test_wrong_keys_are_counted_for_who_is_behind_a_trusted_proxy(serving):
    async with serving(api={"trusted_proxies": ["127.0.0.1"]}) as served:
        await served.app.keys.create("a", "admin")

        async def wrong(number: int, hops: str) -> int:
            headers = bearer(f"wrong{number}") | {"X-Forwarded-For": hops}
            return (await served.ask("GET", RUNS, headers=headers))[0]

        # What a client writes itself stands before what the proxy adds, and is not believed.
        statuses = [await wrong(number, f"{number}.1.1.1, 198.51.100.7") for number in range(int(TRIES) + 1)]
        assert statuses == [401] * int(TRIES) + [429]
        assert await wrong(99, "198.51.100.8") == 401, "another client"


async def test_who_is_no_trusted_proxy_cannot_choose_whom_wrong_keys_count_for(served):
    await served.app.keys.create("a", "admin")
    statuses = []
    for number in range(int(TRIES) + 1):
        headers = bearer(f"wrong{number}") | {"X-Forwarded-For": f"198.51.100.{number}"}
        statuses.append((await served.ask("GET", RUNS, headers=headers))[0])
    assert statuses == [401] * int(TRIES) + [429]
