"""Schedules in words."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from fusee.tasks.cron import Cron, CronError
from tests.unit.cron.test_against_cronsim import minutes, seconds

TABLE = [
    ("*/15 * * * * *", "every 15 seconds", "每 15 秒"),
    ("* * * * * *", "every second", "每秒"),
    ("* * * * *", "every minute", "每分钟"),
    ("*/5 * * * *", "every 5 minutes", "每 5 分钟"),
    ("*/7 * * * *", "every 7 minutes from minute 0", "从第 0 分起每 7 分钟"),
    ("5/15 * * * *", "every 15 minutes from minute 5", "从第 5 分起每 15 分钟"),
    ("10-50/20 * * * *", "every 20 minutes from minute 10 to 50", "每小时第 10 至 50 分之间每 20 分钟"),
    ("0 * * * *", "every hour", "每小时"),
    ("30 * * * *", "at minute 30 of every hour", "每小时第 30 分"),
    ("15 30 * * * *", "at minute 30 and second 15 of every hour", "每小时第 30 分 15 秒"),
    ("0,30 * * * *", "at minutes 0 and 30 of every hour", "每小时第 0、30 分"),
    ("30 */5 * * * *", "at second 30, every 5 minutes", "每 5 分钟，第 30 秒"),
    ("0,30 * * * * *", "at seconds 0 and 30 of every minute", "每分钟第 0、30 秒"),
    ("0 */2 * * *", "every 2 hours", "每 2 小时"),
    ("30 */2 * * *", "every 2 hours from 00:30", "从 00:30 起每 2 小时"),
    ("0 */5 * * *", "every 5 hours from 00:00", "从 00:00 起每 5 小时"),
    ("0 9-17 * * *", "every hour from 09:00 to 17:00", "09:00 至 17:00，每小时"),
    ("15 8-18/2 * * *", "every 2 hours from 08:15 to 18:15", "08:15 至 18:15，每 2 小时"),
    ("0 0,12 * * *", "every day at 00:00 and 12:00", "每天 00:00、12:00"),
    ("30 9 * * *", "every day at 09:30", "每天 09:30"),
    ("0 9 * * mon-fri", "at 09:00, Monday to Friday", "周一至周五 09:00"),
    ("0 9 * * 5-7", "at 09:00, Friday to Sunday", "周五至周日 09:00"),
    ("0 9 * * fri-mon", "at 09:00, Friday to Monday", "周五至周一 09:00"),
    ("0 9 * * sat,sun", "at 09:00, on Saturday and Sunday", "周六、周日 09:00"),
    (
        "*/10 9-17 * * mon-fri",
        "every 10 minutes, from 09:00 to 17:59, Monday to Friday",
        "周一至周五，09:00 至 17:59，每 10 分钟",
    ),
    (
        "*/10 */2 * * *",
        "every 10 minutes, during hours 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20 and 22",
        "0、2、4、6、8、10、12、14、16、18、20、22 点，每 10 分钟",
    ),
    (
        "*/10 9,12,15-18 * * *",
        "every 10 minutes, during hours 9, 12 and 15 to 18",
        "9、12、15 至 18 点，每 10 分钟",
    ),
    (
        "*/15 0 2 * * *",
        "every day at 02:00:00, 02:00:15, 02:00:30 and 02:00:45",
        "每天 02:00:00、02:00:15、02:00:30、02:00:45",
    ),
    ("* * 2 * * *", "every second, from 02:00 to 02:59", "02:00 至 02:59，每秒"),
    ("0 0 1 * *", "at 00:00, on day 1 of the month", "每月 1 日 00:00"),
    ("0 0 1,15 * *", "at 00:00, on days 1 and 15 of the month", "每月 1、15 日 00:00"),
    ("0 0 1-7 * *", "at 00:00, on days 1 to 7 of the month", "每月 1 至 7 日 00:00"),
    ("0 0 */2 * *", "at 00:00, every 2 days from day 1 of the month", "每月从 1 日起每 2 天 00:00"),
    ("0 0 L * *", "at 00:00, on the last day of the month", "每月最后一天 00:00"),
    ("0 0 L-3 * *", "at 00:00, on the 4th-to-last day of the month", "每月倒数第 4 天 00:00"),
    ("0 0 LW * *", "at 00:00, on the last weekday of the month", "每月最后一个工作日 00:00"),
    ("0 0 15W * *", "at 00:00, on the weekday nearest day 15 of the month", "每月离 15 日最近的工作日 00:00"),
    (
        "0 0 1,15,L * *",
        "at 00:00, on days 1 and 15 and the last day of the month",
        "每月 1、15 日和最后一天 00:00",
    ),
    ("0 0 * * fri#2", "at 00:00, on the second Friday of the month", "每月第 2 个周五 00:00"),
    ("0 0 * * 5L", "at 00:00, on the last Friday of the month", "每月最后一个周五 00:00"),
    (
        "0 0 * * mon,fri#2",
        "at 00:00, on Monday and the second Friday of the month",
        "周一、每月第 2 个周五 00:00",
    ),
    ("0 0 13 * fri", "at 00:00, on day 13 of the month or on Friday", "每月 13 日或周五 00:00"),
    (
        "0 0 */7 * mon",
        "at 00:00, every 7 days from day 1 of the month, but only on Monday",
        "每月从 1 日起每 7 天且为周一 00:00",
    ),
    ("0 0 1 1 *", "at 00:00, on day 1 of the month, in January", "1 月的 1 日 00:00"),
    ("0 0 * 5 *", "every day at 00:00, in May", "5 月每天 00:00"),
    ("0 0 * 6-8 mon", "at 00:00, on Monday, June to August", "6 月至 8 月的周一 00:00"),
    ("*/5 * * jan,jul *", "every 5 minutes, in January and July", "1 月、7 月，每 5 分钟"),
    (
        "0 0 1 */3 *",
        "at 00:00, on day 1 of the month, in January, April, July and October",
        "1 月、4 月、7 月、10 月每月 1 日 00:00",
    ),
    ("0 0 29 2 *", "at 00:00, on day 29 of the month, in February", "2 月的 29 日 00:00"),
    ("@weekly", "at 00:00, on Sunday", "周日 00:00"),
    (
        "0 1,2,3,4 1,2,3 * * *",
        "at minutes 1, 2, 3 and 4, during hours 1, 2 and 3",
        "1、2、3 点，第 1、2、3、4 分",
    ),
    (
        "0 0 1-5,8-20 * * *",
        "hourly 01:00 to 05:00 and 08:00 to 20:00",
        "01:00 至 05:00、08:00 至 20:00，每小时",
    ),
    ("0 22-6 * * *", "every hour from 22:00 to 06:00", "22:00 至 06:00，每小时"),
    ("*/5 22-6 * * *", "every 5 minutes, from 22:00 to 06:59", "22:00 至 06:59，每 5 分钟"),
    (
        "5 0 1-2 13 * FRI",
        "at 01:00:05 and 02:00:05, on day 13 of the month or on Friday",
        "每月 13 日或周五 01:00:05、02:00:05",
    ),
    ("0 0 * * */2", "at 00:00, on Sunday, Tuesday, Thursday and Saturday", "周日、周二、周四、周六 00:00"),
    (
        "10-20 5 4 * * *",
        "at seconds 10 to 20, at minute 5, from 04:00 to 04:59",
        "04:00 至 04:59，第 5 分，第 10 至 20 秒",
    ),
    ("0 */24 * * *", "every day at 00:00", "每天 00:00"),
    ("*/60 * * * *", "every hour", "每小时"),
    ("0 0-23 * * *", "every hour from 00:00 to 23:00", "00:00 至 23:00，每小时"),
    (
        "0 0 L,15W * mon",
        "at 00:00, on the last day and the weekday nearest day 15 of the month or on Monday",
        "每月最后一天和离 15 日最近的工作日或周一 00:00",
    ),
    (
        "0 0 * 1-3 5L",
        "at 00:00, on the last Friday of the month, January to March",
        "1 月至 3 月每月最后一个周五 00:00",
    ),
    (
        "0 0 10-20/5 * *",
        "at 00:00, every 5 days from day 10 to 20 of the month",
        "每月 10 至 20 日之间每 5 天 00:00",
    ),
    (
        "5 */10 9-10 * * *",
        "at second 5, every 10 minutes, from 09:00 to 10:59",
        "09:00 至 10:59，每 10 分钟，第 5 秒",
    ),
]


@pytest.mark.parametrize(("expression", "english", "chinese"), TABLE)
def test_in_words(expression: str, english: str, chinese: str) -> None:
    cron = Cron.parse(expression)
    assert cron.describe() == cron.describe("en") == english
    assert cron.describe("zh") == chinese


def test_a_region_is_a_language_too() -> None:
    cron = Cron.parse("@hourly")
    assert cron.describe("zh-CN") == cron.describe("zh_TW") == cron.describe("zh")
    assert cron.describe("en-GB") == cron.describe("EN") == "every hour"


def test_a_language_without_words_is_refused() -> None:
    with pytest.raises(ValueError, match="no words for 'fr'; there are en, zh"):
        Cron.parse("@hourly").describe("fr")


@given(minutes | seconds)
@settings(max_examples=200, deadline=None)
def test_whatever_is_read_has_words(expression: str) -> None:
    try:
        cron = Cron.parse(expression)
    except CronError:
        return
    for language in ("en", "zh"):
        words = cron.describe(language)
        assert words and words == words.strip() and "  " not in words
