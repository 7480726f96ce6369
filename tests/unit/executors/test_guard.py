"""Which addresses may be reached."""

from __future__ import annotations

import socket
from ipaddress import ip_address

import pytest

from fusee.executors.http.guard import AddressRefused, Guard, literal, public

PRIVATE = [
    "127.0.0.1",
    "127.255.255.254",
    "0.0.0.0",
    "0.1.2.3",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "100.100.100.200",
    "192.0.0.192",
    "168.63.129.16",
    "198.18.0.1",
    "192.0.2.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:a9fe:a9fe",
    "2002:7f00:1::",
    "2002:a00:1::1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "2001:0:a00:1::",
    "2001:db8::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "fe80::1%25eth0",
    "fec0::1",
    "ff02::1",
]
PUBLIC = [
    "93.184.216.34",
    "8.8.8.8",
    "2606:4700::1111",
    "::ffff:8.8.8.8",
    "2002:808:808::1",
    "64:ff9b::808:808",
]


@pytest.mark.parametrize("text", PRIVATE)
def test_what_is_not_public_is_refused(text: str) -> None:
    guard = Guard()
    with pytest.raises(AddressRefused, match=r"executors\.http\.allow_private"):
        guard.check_host(text)
    with pytest.raises(AddressRefused):
        guard.check_resolved("name.example", ["8.8.8.8", text])  # one bad address spoils the name
    with pytest.raises(AddressRefused):
        guard.open_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", (text, 80)))


@pytest.mark.parametrize("text", PUBLIC)
def test_what_is_public_passes(text: str) -> None:
    guard = Guard()
    guard.check_host(text)
    guard.check_resolved("name.example", [text])


@pytest.mark.parametrize(
    "text", ["2130706433", "0x7f000001", "0x7f.1", "017700000001", "127.1", "0177.0.0.1", "1"]
)
def test_old_spellings_of_an_address_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="four decimal numbers"):
        literal(text)


def test_names_are_no_addresses() -> None:
    assert literal("example.com") is None
    assert literal("1.example.com") is None
    assert literal("localhost") is None
    assert literal("127.0.0.1.") == ip_address("127.0.0.1")
    assert literal("[::1]") == ip_address("::1")
    with pytest.raises(ValueError, match="not an IPv6 address"):
        literal("::zz")


def test_networks_and_hosts_can_be_allowed() -> None:
    guard = Guard(["10.0.0.0/8", "127.0.0.1", "fd00::/8", "Svc.Internal."])
    for text in ("10.9.8.7", "127.0.0.1", "fd12::1", "::ffff:10.0.0.1"):
        guard.check_host(text)
    for text in ("127.0.0.2", "192.168.0.1", "fe80::1"):
        with pytest.raises(AddressRefused):
            guard.check_host(text)
    guard.check_resolved("svc.internal", ["192.168.0.1"])
    with pytest.raises(AddressRefused, match=r"other.internal \(192.168.0.1\) is not a public address"):
        guard.check_resolved("other.internal", ["192.168.0.1"])


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(AddressRefused, match="is not an address"):
        Guard().check_resolved("x", ["nonsense"])


@pytest.mark.parametrize("entry", ["10.0.0.0/99", "*.internal", ""])
def test_a_wrong_entry_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="allow_private has"):
        Guard([entry])


def test_public_is_strict() -> None:
    assert public(ip_address("8.8.8.8"))
    assert not public(ip_address("fec0::1"))
