"""The kinds of sources that every app knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fusee.bulk.sources.base import SourceKinds
from fusee.bulk.sources.derived import DoneSource, QuarantineSource
from fusee.bulk.sources.files import FileSource, UrlSource
from fusee.bulk.sources.limits import SizeLimits
from fusee.bulk.sources.simple import ListSource, RangeSource
from fusee.bulk.sources.sql import SqlSource
from fusee.bulk.store.store import BulkBackend

__all__ = ["builtin_sources"]


def builtin_sources(
    store: Callable[[], BulkBackend],
    *,
    allow_private: Sequence[str] = (),
    limits: SizeLimits = SizeLimits(),  # noqa: B008
) -> SourceKinds:
    """`allow_private`: which addresses besides public ones a URL may name."""
    kinds = SourceKinds()
    kinds.register("range", RangeSource)
    kinds.register("list", ListSource)
    kinds.register("file", lambda given: FileSource(given, limits))
    kinds.register("url", lambda given: UrlSource(given, allow_private, limits))
    kinds.register("sql", SqlSource)
    kinds.register("quarantine", lambda given: QuarantineSource(given, kinds, store), internal=True)
    kinds.register("done", lambda given: DoneSource(given, kinds, store), internal=True)
    return kinds
