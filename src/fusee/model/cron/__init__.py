"""Cron expressions: read, refused with a reason, said in words, and turned into instants in a time zone.

    fields  what one field may hold            zones   the offsets of a time zone, as stretches
    days    L, W, # and the two day fields     expression   `Cron`: all of it together
    parse   the whole line, macros, refusals   english, chinese   the same schedule in words
    dial    matches on a wall clock, no zones

The dialect is Spring's numbering (0 and 7 are Sunday, seconds in front) with Debian's rules for the two day
fields and for daylight saving. No dependency keeps all of those: the ones we measured fire twice, or not at
all, on the days when clocks change.
"""

from fusee.model.cron.errors import CronError
from fusee.model.cron.expression import Cron, next_fires

__all__ = ["Cron", "CronError", "next_fires"]
