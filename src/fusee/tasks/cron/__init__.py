"""Cron expressions: parsed, refused with a reason, described in words, and turned into instants of a zone.

    errors      CronError, which points at the field
    fields      what one field may hold: numbers, names, ranges, steps, lists
    days        L, W and #, and the two day fields together
    never       why an expression cannot fire
    parse       the whole line: macros, five or six fields
    dial        matches on a wall clock, without zones
    zones       the offsets of a time zone, as stretches
    expression  `Cron`: all of it together, and the rules for daylight saving
    english, chinese  the schedule in words; shapes is what they share

The dialect is Spring's numbering (0 and 7 are Sunday, seconds in front) with Debian's rules for the two day
fields and for daylight saving. It is ours because cronsim keeps those rules for five fields only, and
croniter runs a daily job twice in a repeated hour. docs/cron.md tells users what to expect.
"""

from fusee.tasks.cron.errors import CronError
from fusee.tasks.cron.expression import Cron, next_fires

__all__ = ["Cron", "CronError", "next_fires"]
