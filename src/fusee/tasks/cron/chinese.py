"""Schedules in Chinese: "周一至周五，09:00 至 17:59，每 15 分钟"."""

from __future__ import annotations

from collections.abc import Sequence

from fusee.tasks.cron.days import Last, LastOf, LastWeekday, Near, Nth, Part
from fusee.tasks.cron.fields import DAY, HOUR, MINUTE, MONTH, SECOND, WEEKDAY, CronField, Span
from fusee.tasks.cron.parse import Fields
from fusee.tasks.cron.shapes import clock, clock_times, even, is_every, listed, only, open_ended, stepped

__all__ = ["describe"]

_WEEKDAYS = ("周日", "周一", "周二", "周三", "周四", "周五", "周六")


class _Unit:
    """How a field counts (分钟) and how it names one (第 5 分)."""

    def __init__(self, field: CronField, count: str, point: str) -> None:
        self.field, self.count, self.point = field, count, point


_SECONDS = _Unit(SECOND, "秒", "秒")
_MINUTES = _Unit(MINUTE, "分钟", "分")


def describe(fields: Fields) -> str:
    date = _date(fields)
    if times := clock_times(fields):
        any_day = is_every(fields.days) and is_every(fields.weekdays)
        return f"{date}{'每天' if any_day else ''} {'、'.join(times)}"
    rhythm = _rhythm(fields)
    return f"{date}，{rhythm}" if date else rhythm


# --- time of day -------------------------------------------------------------------------------------


def _rhythm(fields: Fields) -> str:
    second, minute = only(SECOND, fields.seconds), only(MINUTE, fields.minutes)
    if second is not None and minute is not None:
        return _hours(fields.hours, minute, second)
    pieces = []
    if not is_every(fields.hours):
        pieces.append(_window(fields.hours))
    words = "" if is_every(fields.minutes) else _unit(_MINUTES, fields.minutes)
    if words:
        point = is_every(fields.hours) and words.startswith("第")
        pieces.append(f"每小时{words}" if point else words)
    if second == 0:
        return "，".join(pieces if words else [*pieces, "每分钟"])
    last = _unit(_SECONDS, fields.seconds)
    return "，".join([*pieces, f"每分钟{last}" if not words and last.startswith("第") else last])


def _hours(hours: Sequence[Span], minute: int, second: int) -> str:
    """A rhythm of whole hours: the minute and the second are always the same."""

    def at(hour: int) -> str:
        return clock(hour, minute, second or None)

    exact = minute == second == 0
    if is_every(hours):
        point = f"第 {minute} 分 {second} 秒" if second else f"第 {minute} 分"
        return "每小时" if exact else f"每小时{point}"
    if span := stepped(HOUR, hours):
        if exact and even(HOUR, span):
            return f"每 {span.step} 小时"
        first = (
            f"从 {at(span.first)} 起" if open_ended(HOUR, span) else f"{at(span.first)} 至 {at(span.last)}，"
        )
        return f"{first}每 {span.step} 小时"
    if len(hours) == 1:
        values = hours[0].values(HOUR)
        return f"{at(values[0])} 至 {at(values[-1])}，每小时"
    words = "、".join(listed(HOUR, hours, lambda a, b: f"{at(a)} 至 {at(b)}", at))
    return f"{words}，每小时" if "至" in words else words


def _unit(unit: _Unit, spans: Sequence[Span]) -> str:
    field = unit.field
    if is_every(spans):
        return f"每{unit.count}"
    if span := stepped(field, spans):
        if even(field, span):
            return f"每 {span.step} {unit.count}"
        if open_ended(field, span):
            return f"从第 {span.first} {unit.point}起每 {span.step} {unit.count}"
        return f"第 {span.first} 至 {span.last} {unit.point}之间每 {span.step} {unit.count}"
    return f"第 {'、'.join(listed(field, spans, lambda a, b: f'{a} 至 {b}', str))} {unit.point}"


def _window(hours: Sequence[Span]) -> str:
    """The hours in which something happens more often than hourly."""
    if len(hours) == 1 and hours[0].step == 1:
        values = hours[0].values(HOUR)
        return f"{clock(values[0])} 至 {clock(values[-1], 59)}"
    return f"{'、'.join(listed(HOUR, hours, lambda a, b: f'{a} 至 {b}', str))} 点"


# --- days --------------------------------------------------------------------------------------------


def _date(fields: Fields) -> str:
    """Months first, as dates are said: 每月 15 日, 1 月的 15 日, 5 月的周一."""
    every_month = is_every(fields.months)
    of_month = _of_month(fields.days)
    of_week = _of_week(fields.weekdays, "每月" if every_month and not of_month else "")
    joined = "且为" if fields.both else "或"
    day = joined.join(words for words in (of_month, of_week) if words)
    if not every_month:
        months = listed(MONTH, fields.months, lambda a, b: f"{a} 月至 {b} 月", lambda month: f"{month} 月")
        # "6 月至 8 月的最后一天" would be a single day.
        within = of_month or not all(isinstance(part, Span) for part in fields.weekdays)
        link = "每月" if within and only(MONTH, fields.months) is None else "的"
        return _spaced(f"{'、'.join(months)}{link}", day) if day else "、".join(months)
    return _spaced("每月", day) if of_month else day


def _spaced(words: str, more: str) -> str:
    """A space stands between a character and a digit."""
    return f"{words} {more}" if more[0].isdigit() else f"{words}{more}"


def _of_month(parts: Sequence[Part]) -> str:
    if is_every(parts):
        return ""
    if span := stepped(DAY, parts):
        if open_ended(DAY, span):
            return f"从 {span.first} 日起每 {span.step} 天"
        return f"{span.first} 至 {span.last} 日之间每 {span.step} 天"
    pieces = []
    if numbers := listed(DAY, parts, lambda a, b: f"{a} 至 {b}", str):
        pieces.append(f"{'、'.join(numbers)} 日")
    for part in parts:
        match part:
            case Last(0):
                pieces.append("最后一天")
            case Last(before):
                pieces.append(f"倒数第 {before + 1} 天")
            case LastWeekday():
                pieces.append("最后一个工作日")
            case Near(day):
                pieces.append(f"离 {day} 日最近的工作日")
            case _:
                pass
    return "和".join(pieces)


def _of_week(parts: Sequence[Part], month: str) -> str:
    if is_every(parts):
        return ""
    pieces = listed(
        WEEKDAY, parts, lambda a, b: f"{_WEEKDAYS[a]}至{_WEEKDAYS[b]}", lambda day: _WEEKDAYS[day]
    )
    for part in parts:
        match part:
            case Nth(weekday, nth):
                pieces.append(f"{month}第 {nth} 个{_WEEKDAYS[weekday]}")
            case LastOf(weekday):
                pieces.append(f"{month}最后一个{_WEEKDAYS[weekday]}")
            case _:
                pass
    return "、".join(pieces)
