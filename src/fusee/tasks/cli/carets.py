"""Pointing at the field of a cron expression that is wrong."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fusee.tasks.cron import CronError

__all__ = ["pointed"]


def pointed(expression: str, error: CronError) -> str:
    """What is wrong, and below it the expression with the field underlined."""
    words = list(re.finditer(r"[^ \t\r\n]+", expression))
    if error.position is None or not 0 < error.position <= len(words) or not expression.isprintable():
        return str(error)
    word = words[error.position - 1]
    return f"{error}\n       {expression}\n       {' ' * word.start()}{'^' * len(word[0])}"
