"""Where a bulk job's items come from; each kind is one small class behind one contract."""

from fusee.bulk.sources.base import ABSENT, BadItem, ItemSource, PageReader, Placed, Reader, SourceKinds

__all__ = ["ABSENT", "BadItem", "ItemSource", "PageReader", "Placed", "Reader", "SourceKinds"]
