"""GTIDs in the offsets of Debezium's MySQL and MariaDB connectors, as Kafka Connect hands them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusee.contrib.cdc.errors import Refused

__all__ = ["gtid_of", "with_gtid"]

Offsets = Sequence[Mapping[str, Any]]
NO_SKIPS = {"event": 0, "row": 0}
"""How much of the transaction at the old position was done: of no meaning at another one."""


def gtid_of(offsets: Offsets) -> str | None:
    """The GTID set that the connector has done; None when it has not begun."""
    if not offsets:
        return None
    if len(offsets) > 1:
        raise Refused(f"the connector reads {len(offsets)} partitions: it has no one GTID")
    offset = offsets[0]["offset"] or {}
    if "gtids" not in offset and "file" not in offset:
        raise Refused("the connector's offsets are not those of a MySQL or MariaDB connector")
    return offset.get("gtids") or None


def with_gtid(offsets: Offsets, config: Mapping[str, str], gtid: str) -> list[dict[str, Any]]:
    """The offsets that have the connector read what is not in `gtid`."""
    if offsets:
        partition, offset = offsets[0]["partition"], dict(offsets[0]["offset"] or {})
        skips = {name: 0 for name in NO_SKIPS if name in offset}
        return [{"partition": partition, "offset": {**offset, **skips, "gtids": gtid}}]
    server = config.get("topic.prefix") or config.get("database.server.name")
    if not server:
        raise Refused("the connector has no offsets yet, and its configuration has no topic.prefix")
    # Debezium wants a file to be named; with GTIDs it goes by them.
    return [{"partition": {"server": server}, "offset": {"file": "", "pos": 0, "gtids": gtid}}]
