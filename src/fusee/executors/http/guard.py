"""Which addresses an HTTP run may reach: public ones, and those that the operator allowed.

A name is resolved once and the connection goes to the addresses that were checked, so a name that resolves
differently a moment later (DNS rebinding) gains nothing. Each socket is checked again when it is opened.
Anything that cannot be judged is refused.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

__all__ = ["AddressRefused", "Guard", "GuardedResolver", "guarded_session", "literal", "public"]

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_LOOPBACK: tuple[Address, ...] = (IPv4Address("127.0.0.1"), IPv6Address("::1"))
_SIX_TO_FOUR = IPv6Network("2002::/16")
_NAT64 = IPv6Network("64:ff9b::/96")

# Special by the registries of IANA, or in practice, and not (in every Python) by `ipaddress`.
_SPECIAL: tuple[Network, ...] = tuple(
    ip_network(network)
    for network in (
        "168.63.129.16/32",  # Azure's host, seen from its guests
        "192.0.0.0/24",  # Oracle's metadata lives here
        "192.88.99.0/24",
        "::/96",  # an IPv4 address in disguise
        "64:ff9b:1::/48",
        "100::/64",
        "2001::/23",  # Teredo, ORCHID
        "3fff::/20",
        "5f00::/16",
        "fec0::/10",
    )
)


class AddressRefused(OSError, ValueError):
    """The guard refuses this address: an OSError for the connector, a ValueError for checks of payloads."""


class Guard:
    """Checks hosts and addresses; `allow_private` holds host names, addresses and networks."""

    def __init__(self, allow_private: Iterable[str] = ()) -> None:
        self._hosts: set[str] = set()
        self._networks: list[Network] = []
        self._by_name: set[Address] = set()
        for entry in allow_private:
            try:
                self._networks.append(ip_network(entry.strip().strip("[]"), strict=False))
            except ValueError:
                if "/" in entry or "*" in entry or not entry.strip():
                    raise ValueError(
                        f"allow_private has {entry!r}: a host (svc.internal), an address or a network"
                        " (10.0.0.0/8)"
                    ) from None
                self._hosts.add(_name(entry))

    def check_host(self, host: str) -> None:
        """Refuse a host that is an address, or a name of this machine, and is not allowed."""
        address = literal(host)
        if address is not None:
            self._check(address, host)
        elif _is_localhost(host) and not self._allows_loopback(host):
            self._check(_LOOPBACK[0], host)

    def _allows_loopback(self, host: str) -> bool:
        return _name(host) in self._hosts or any(own in net for own in _LOOPBACK for net in self._networks)

    def check_resolved(self, host: str, addresses: Iterable[str]) -> None:
        """Refuse a name if any of its addresses is refused: a mixed set is an attack or a mistake."""
        named = _name(host) in self._hosts
        for text in addresses:
            address = _parse(text)
            if named:
                self._by_name.add(address)
            else:
                self._check(address, host)

    def open_socket(self, info: aiohttp.AddrInfoType) -> socket.socket:
        """Check the address of a socket and open it: nothing connects without this check."""
        family, kind, protocol, _, where = info
        address = _parse(str(where[0]))
        if address not in self._by_name:
            self._check(address, str(where[0]))
        return socket.socket(family, kind, protocol)

    def _check(self, address: Address, host: str) -> None:
        reached = _reached(address)
        if not public(reached) and not any(reached in network for network in self._networks):
            known = "" if str(address) == host else f" ({address})"
            raise AddressRefused(
                f"{host}{known} is not a public address: add the host or its network to"
                " executors.http.allow_private if runs may call it"
            )


class GuardedResolver(AbstractResolver):
    """Returns only addresses that the guard allows."""

    def __init__(self, guard: Guard, resolver: AbstractResolver) -> None:
        self._guard = guard
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        if not found:
            raise OSError(f"{host} has no address")
        self._guard.check_resolved(host, [result["host"] for result in found])
        return found

    async def close(self) -> None:
        await self._resolver.close()


def guarded_session(
    guard: Guard,
    resolver: AbstractResolver | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    **more: Any,
) -> aiohttp.ClientSession:
    """Return a client that reaches only what the guard allows; every outgoing call of the platform uses one.

    Call with `allow_redirects=False`: a redirect leads to an address that was not checked.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            resolver=GuardedResolver(guard, resolver or aiohttp.ThreadedResolver()),
            socket_factory=guard.open_socket,
            # Every new connection is resolved and checked anew; the caller limits their number.
            use_dns_cache=False,
            limit=0,
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        headers={"User-Agent": "fusee", **(headers or {})},
        **more,
    )


def literal(host: str) -> Address | None:
    """Return the address that `host` spells out, or None for a name.

    The old spellings of IPv4 (`2130706433`, `0x7f.1`, `017700000001`) are refused with a ValueError:
    they are used only to get past a check such as this one.
    """
    text = host.strip("[]").rstrip(".")
    try:
        return _parse(text)
    except AddressRefused:
        pass
    if ":" in text:
        raise ValueError(f"{host!r} is not an IPv6 address")
    try:
        socket.inet_aton(text)
    except (OSError, UnicodeError):
        return None
    raise ValueError(f"write the address {host!r} as four decimal numbers")


def public(address: Address) -> bool:
    """Return whether the address is on the public internet."""
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not address.is_loopback
        and not address.is_link_local
        and not address.is_unspecified
        and not any(address in network for network in _SPECIAL if network.version == address.version)
    )


def _reached(address: Address) -> Address:
    """Return the address that is really reached: IPv4 inside IPv6 is judged as IPv4."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _SIX_TO_FOUR and address.sixtofour is not None:
            return address.sixtofour
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _parse(text: str) -> Address:
    try:
        # A zone (`%eth0`, `%25eth0`) names the interface, not the address.
        return ip_address(text.partition("%")[0])
    except ValueError:
        raise AddressRefused(f"{text!r} is not an address") from None


def _is_localhost(host: str) -> bool:
    """RFC 6761: these names are the machine itself, whatever a resolver says."""
    return _name(host) == "localhost" or _name(host).endswith(".localhost")


def _name(host: str) -> str:
    return host.strip().rstrip(".").lower()
