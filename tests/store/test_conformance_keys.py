"""API keys in the store: found by digest while valid, one name at a time, rotated with an overlap."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy.exc import DBAPIError

from fusee.access.principal import Role
from fusee.access.store import NewKey
from fusee.errors import Conflict, NotFound
from fusee.stores import Store
from tests.store.harness import START, World

pytestmark = pytest.mark.asyncio(loop_scope="session")


def new(name: str = "ci", letter: str = "a", role: str = "operator", **more: object) -> NewKey:
    plain = {"prefix": "fusee_abc", "grants": {}, **more}
    return NewKey(name=name, role=role, digest=letter * 64, **plain)  # type: ignore[arg-type]


async def test_a_key_is_found_by_its_digest_until_it_is_revoked(world: World) -> None:
    store, tenant = world.store, world.store.for_namespace("tenant")
    assert await store.api_keys.count_keys() == 0
    mine = await store.api_keys.add_key(new("ci", "a"))
    theirs = await tenant.api_keys.add_key(new("ops", "b", "admin"))
    key = await tenant.api_keys.key_by_digest("a" * 64)
    assert key is not None
    assert (key.id, key.namespace, key.name, key.role) == (mine, "default", "ci", "operator")
    assert (key.created_at, key.revoked_at, key.prefix) == (START, None, "fusee_abc")
    assert [key.id for key in await store.api_keys.keys()] == [mine]
    assert await store.api_keys.count_keys() == 2
    with pytest.raises(NotFound, match=f"no valid key {theirs} in namespace 'default'"):
        await store.api_keys.revoke_key(theirs)
    await world.clock.tick(1)
    await store.api_keys.revoke_key(mine)
    assert await store.api_keys.key_by_digest("a" * 64) is None
    assert [key.revoked_at for key in await store.api_keys.keys()] == [START + 1_000_000]
    assert await store.api_keys.count_keys() == 1
    with pytest.raises(NotFound):
        await store.api_keys.revoke_key(mine)


async def test_other_digests_and_roles_are_refused(store: Store) -> None:
    await store.api_keys.add_key(new("one", "c", "viewer"))
    assert await store.api_keys.key_by_digest("C" * 64) is None
    with pytest.raises(DBAPIError):
        await store.api_keys.add_key(new("two", "c", "viewer"))
    with pytest.raises(DBAPIError):
        await store.api_keys.add_key(new("three", "d", "emperor"))


async def test_a_key_that_has_expired_is_not_found_and_frees_its_name(world: World) -> None:
    keys = world.store.api_keys
    await keys.add_key(new("ci", "a", lifetime=5_000_000))
    await world.clock.tick(4)
    assert await keys.key_by_digest("a" * 64) is not None
    with pytest.raises(Conflict, match=r"API key \d+ has the name 'ci'.*fusee key rotate"):
        await keys.add_key(new("ci", "b"))
    await world.clock.tick(1)
    assert await keys.key_by_digest("a" * 64) is None
    assert await keys.count_keys() == 0
    assert await keys.any_key_ever()
    await keys.add_key(new("ci", "b"))


async def test_a_name_is_free_again_after_its_key_was_revoked(world: World) -> None:
    keys, tenant = world.store.api_keys, world.store.for_namespace("tenant").api_keys
    first = await keys.add_key(new("ci", "a"))
    await tenant.add_key(new("ci", "b"))  # names are unique in a namespace
    await keys.revoke_key(first)
    await keys.add_key(new("ci", "c"))


async def test_of_two_that_create_a_key_of_one_name_at_once_one_is_refused(world: World) -> None:
    other = await world.another()
    made = await asyncio.gather(
        world.store.api_keys.add_key(new("ci", "a")),
        other.api_keys.add_key(new("ci", "b")),
        return_exceptions=True,
    )
    assert sorted(type(one).__name__ for one in made) == ["Conflict", "int"]
    assert len(await world.store.api_keys.keys()) == 1


async def test_a_rotated_key_works_until_the_overlap_is_over(world: World) -> None:
    keys = world.store.api_keys
    first = await keys.add_key(new("ci", "a", "viewer", grants={"billing": Role.OPERATOR}))
    replaced = await keys.rotate_key(first, new("", "b", prefix="fusee_new"), 10_000_000)
    assert (replaced.name, replaced.role, replaced.prefix) == ("ci", "viewer", "fusee_new")
    assert replaced.grants == {"billing": "operator"}
    await world.clock.tick(9)
    assert await keys.key_by_digest("a" * 64) is not None
    assert await keys.key_by_digest("b" * 64) is not None
    await world.clock.tick(1)
    assert await keys.key_by_digest("a" * 64) is None
    assert await keys.key_by_digest("b" * 64) is not None
    with pytest.raises(NotFound):
        await keys.rotate_key(first, new("", "c"), 0)
    with pytest.raises(NotFound):
        await world.store.for_namespace("tenant").api_keys.rotate_key(replaced.id, new("", "c"), 0)


async def test_the_last_use_is_written_at_most_once_a_minute(world: World) -> None:
    keys = world.store.api_keys
    key_id = await keys.add_key(new())
    await keys.key_was_used(key_id)
    await world.clock.tick(59)
    await keys.key_was_used(key_id)
    assert [key.last_used_at for key in await keys.keys()] == [START]
    await world.clock.tick(2)
    await keys.key_was_used(key_id)
    assert [key.last_used_at for key in await keys.keys()] == [START + 61_000_000]


async def test_keys_of_before_keep_working_and_share_their_names(world: World) -> None:
    """As revision 0001 stored them: without a prefix, grants or a held name."""
    for letter in "ab":
        await world.sql(
            "INSERT INTO fusee_api_keys (namespace, name, role, digest, created_at)"
            f" VALUES ('default', 'ci', 'operator', '{letter * 64}', 1)"
        )
    for letter in "ab":
        key = await world.store.api_keys.key_by_digest(letter * 64)
        assert key is not None and (key.role, key.grants, key.expires_at) == ("operator", {}, None)
    assert await world.store.api_keys.count_keys() == 2
    await world.store.api_keys.add_key(new("ci", "c"))
