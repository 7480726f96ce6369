"""Where a bulk job's items come from; each kind is one small class behind one contract."""

from fusee.bulk.sources.base import ABSENT, BadItem, PageReader, Placed, Reader, Source, SourceKinds

__all__ = ["ABSENT", "BadItem", "PageReader", "Placed", "Reader", "Source", "SourceKinds"]
