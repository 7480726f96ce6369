"""Cron expressions: parsed, refused with a reason, described in words, and turned into instants of a zone.

    fields      what one field may hold, and CronError, which points at the field
    days        L, W and #, and the two day fields together
    parse       the whole line: macros, five or six fields, and why it can never fire
    dial        matches on a wall clock, without zones
    zones       the offsets of a time zone, as stretches
    expression  `Cron`: all of it together, and the rules for daylight saving
    english, chinese  the schedule in words; shapes is what they share

The dialect is Spring's numbering (0 and 7 are Sunday, seconds in front) with Debian's rules for the two day
fields and for daylight saving. It is ours because cronsim keeps those rules for five fields only, and
croniter runs a daily job twice in a repeated hour. docs/cron.md tells users what to expect.
"""

from fusee.tasks.cron.expression import Cron, next_fires
from fusee.tasks.cron.fields import CronError

__all__ = ["Cron", "CronError", "next_fires"]
