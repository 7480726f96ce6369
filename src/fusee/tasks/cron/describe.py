"""A schedule in words; each language is one module with one function."""

from __future__ import annotations

from fusee.tasks.cron import chinese, english
from fusee.tasks.cron.parse import Fields

__all__ = ["LANGUAGES", "describe"]

LANGUAGES = {"en": english.describe, "zh": chinese.describe}


def describe(fields: Fields, language: str) -> str:
    """Takes "en" and "zh", also with a region: "zh-CN"."""
    words = LANGUAGES.get(language.replace("_", "-").partition("-")[0].lower())
    if words is None:
        raise ValueError(f"no words for {language[:20]!r}; there are {', '.join(LANGUAGES)}")
    return words(fields)
