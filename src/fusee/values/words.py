"""Words of a fixed set that callers write: read in any case, kept and shown in one."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Word"]


class Word(StrEnum):
    """An enum whose members are found whatever the case of the text is: `skip` is `SKIP`."""

    @classmethod
    def _missing_(cls, value: object) -> Word | None:
        if isinstance(value, str):
            for member in cls:
                if member.value.lower() == value.lower():
                    return member
        return None
