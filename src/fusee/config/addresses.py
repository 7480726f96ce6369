"""What is reached over the network: the database's URL, the address to listen on, hosts to call."""

import re
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

__all__ = [
    "DIALECTS",
    "check_bind_address",
    "check_broker_url",
    "check_database_url",
    "check_host",
    "check_public_url",
    "check_webhook",
    "hide_password",
    "is_loopback",
    "is_wildcard",
    "split_bind_address",
]

DIALECTS = {
    "sqlite": "sqlite",
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
}

_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]*[A-Za-z0-9_])?"
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")
_BIND = re.compile(r"(?:\[(?P<six>[^\[\]]+)\]|(?P<host>[^\[\]:/]+)):(?P<port>[0-9]{1,5})")

_PASSWORD = re.compile(r"(://[^:@/]*):.*", re.DOTALL)
_PASSWORD_PARAMETER = re.compile(r"([?&](?:password|passwd|pwd|sslpassword)=)[^&]*", re.IGNORECASE)


def check_database_url(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    name, plus, _ = scheme.partition("+")
    # The messages hold nothing of the URL beyond a known scheme: without one, any part may be the password.
    if not separator or name not in DIALECTS:
        raise ValueError(
            "must begin with sqlite://, postgresql:// or mysql:// (postgres:// and mariadb:// will do too), "
            "such as sqlite:///fusee.db or postgresql://user:password@host:5432/fusee"
        )
    if plus:
        raise ValueError(f"must begin with {name}://, without a driver; Fusee brings its own")
    if name == "sqlite" and rest and not rest.startswith("/"):
        raise ValueError("must have three slashes before a relative path (sqlite:///fusee.db), four before /")
    if name != "sqlite" and not rest.strip("/"):
        raise ValueError(f"must name a host and a database, such as {name}://user:password@host/fusee")
    return url


def check_broker_url(url: str) -> str:
    parts = urlsplit(url)
    # The message holds nothing of the URL: any part of it may be the password.
    if parts.scheme not in ("amqp", "amqps") or not parts.hostname:
        raise ValueError("must be an address such as amqp://user:password@host:5672/ (amqps:// for TLS)")
    return url


def hide_password(url: str) -> str:
    """The URL as it may be shown to anyone."""
    # To the last @: a password may itself hold @, : or /.
    before, at, after = url.rpartition("@")
    shown = _PASSWORD.sub(r"\1:***", before, count=1) + at + after
    return _PASSWORD_PARAMETER.sub(r"\1***", shown)


def split_bind_address(address: str) -> tuple[str, int]:
    """Host (without brackets) and port."""
    parts = _BIND.fullmatch(address)
    if parts is None:
        raise ValueError("must be host:port such as 127.0.0.1:8080, with IPv6 in brackets: [::1]:8080")
    host, port = parts["six"] or parts["host"], int(parts["port"])
    if port > 65535:
        raise ValueError("must end in a port between 0 and 65535")
    if parts["six"]:
        _check_six(parts["six"])
    elif not _HOST.fullmatch(host):
        raise ValueError("must begin with an IP address or a host name, such as 127.0.0.1:8080")
    return host, port


def check_bind_address(address: str) -> str:
    split_bind_address(address)
    return address


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it; any doubt counts as no."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Whether it is every address of this machine, which nobody can call by that name."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def check_public_url(url: str) -> str:
    """The address without a slash at its end."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good or re.search(r"[\s\\]", url):
        raise ValueError("must be the address others call, such as https://fusee.example.com")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("must have no user, no query and no fragment, such as https://example.com/fusee")
    return url.rstrip("/")


def check_host(host: str) -> str:
    """A host name, an IP address or a network such as 10.0.0.0/8."""
    if "/" in host and "://" not in host:
        try:
            ip_network(host)
        except ValueError as wrong:
            raise ValueError(_network_advice(host)) from wrong
        return host
    if _HOST.fullmatch(host):
        return host
    try:
        ip_address(host)
    except ValueError as wrong:
        raise ValueError(
            "must be a host name, an IP address or a network such as 10.0.0.0/8, without scheme or port"
        ) from wrong
    return host


def _check_six(host: str) -> None:
    try:
        ip_address(host)
    except ValueError as wrong:
        raise ValueError("must hold an IPv6 address between the brackets, such as [::1]:8080") from wrong


def _network_advice(network: str) -> str:
    try:
        return f"must be a network without host bits; write {ip_network(network, strict=False)}"
    except ValueError:
        return "must be a network such as 10.0.0.0/8"


def check_webhook(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an http:// or https:// address with a host")
    return url
