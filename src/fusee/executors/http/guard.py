"""Which addresses an HTTP run may reach: public ones, and those that the operator allowed.

Names are resolved once and the connection goes to the addresses that were looked at, so a name that
answers differently a moment later (DNS rebinding) gains nothing. The same question is asked again for each
socket that is opened. Anything that cannot be judged is refused.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from aiohttp import AddrInfoType
from aiohttp.abc import AbstractResolver, ResolveResult

__all__ = ["Guard", "GuardedResolver", "Refused", "literal", "public"]

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


class Refused(OSError):
    """The guard does not let this address through."""


class Guard:
    """Judges hosts and addresses; `allow_private` holds host names, addresses and networks."""

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
        """Refuse a host that is itself an address, or a name of this machine, and not one we may reach."""
        address = literal(host)
        if address is not None:
            self._check(address, host)
        elif _is_localhost(host) and not self._allows_loopback(host):
            self._check(_LOOPBACK[0], host)

    def _allows_loopback(self, host: str) -> bool:
        return _name(host) in self._hosts or any(own in net for own in _LOOPBACK for net in self._networks)

    def check_resolved(self, host: str, addresses: Iterable[str]) -> None:
        """Refuse a name if any of its addresses is refused: a mixed answer is an attack or a mistake."""
        named = _name(host) in self._hosts
        for text in addresses:
            address = _parse(text)
            if named:
                self._by_name.add(address)
            else:
                self._check(address, host)

    def open_socket(self, info: AddrInfoType) -> socket.socket:
        """The last look, at the address the socket is for: nothing connects around it."""
        family, kind, protocol, _, where = info
        address = _parse(str(where[0]))
        if address not in self._by_name:
            self._check(address, str(where[0]))
        return socket.socket(family, kind, protocol)

    def _check(self, address: Address, host: str) -> None:
        reached = _reached(address)
        if not public(reached) and not any(reached in network for network in self._networks):
            known = "" if str(address) == host else f" ({address})"
            raise Refused(
                f"{host}{known} is not a public address: add the host or its network to"
                " executors.http.allow_private if runs may call it"
            )


class GuardedResolver(AbstractResolver):
    """Lets only addresses through that the guard accepts."""

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


def literal(host: str) -> Address | None:
    """The address that `host` spells out, or None for a name.

    The old spellings of IPv4 (`2130706433`, `0x7f.1`, `017700000001`) are refused with a ValueError:
    they are only ever used to get past a check such as this one.
    """
    text = host.strip("[]").rstrip(".")
    try:
        return _parse(text)
    except Refused:
        pass
    if ":" in text:
        raise ValueError(f"{host!r} is not an IPv6 address")
    try:
        socket.inet_aton(text)
    except (OSError, UnicodeError):
        return None
    raise ValueError(f"write the address {host!r} as four decimal numbers")


def public(address: Address) -> bool:
    """Whether anybody on the internet may be behind it, and nobody else."""
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
    """The address that is really reached: IPv4 inside IPv6 is judged as what it carries."""
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
        # A zone (`%eth0`, `%25eth0`) says through which interface, not to whom.
        return ip_address(text.partition("%")[0])
    except ValueError:
        raise Refused(f"{text!r} is not an address") from None


def _is_localhost(host: str) -> bool:
    """RFC 6761: these names are the machine itself, whatever a resolver says."""
    return _name(host) == "localhost" or _name(host).endswith(".localhost")


def _name(host: str) -> str:
    return host.strip().rstrip(".").lower()
