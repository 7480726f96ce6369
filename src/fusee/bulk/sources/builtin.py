"""The kinds of sources that every app knows."""

from __future__ import annotations

from fusee.bulk.sources.base import SourceKinds
from fusee.bulk.sources.simple import ListSource, RangeSource

__all__ = ["builtin_sources"]


def builtin_sources() -> SourceKinds:
    kinds = SourceKinds()
    kinds.register("range", RangeSource)
    kinds.register("list", ListSource)
    return kinds
