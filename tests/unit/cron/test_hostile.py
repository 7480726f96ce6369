"""Whatever is written, it is read or refused at once."""

from __future__ import annotations

from time import perf_counter
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fusee.tasks.cron import Cron, CronError, next_fires
from fusee.tasks.cron.parse import LONGEST

PROMISE = 0.050
"""Seconds."""


def outcome(expression: str) -> Cron | CronError:
    """The best of three: another process may take the machine while we measure."""
    spent = []
    for _ in range(3):
        start = perf_counter()
        try:
            found: Cron | CronError = Cron(expression)  # not parse(), which remembers
        except CronError as refused:
            found = refused
        spent.append(perf_counter() - start)
    assert min(spent) < PROMISE
    return found


EVERY_SECOND = ",".join(str(n) for n in range(60))

HOSTILE = {
    "ten thousand characters": "0 " * 5_000,
    "a long list": f"{','.join(['*'] * 490)} * * * *",
    "a long list of ranges": f"{'0-59,' * 190}1 * * * *",
    "a long list of different ranges": ",".join(f"{a}-{a + 1}" for a in range(10, 58)) + " * * * *",
    "long lists of days": f"0 0 {','.join(f'{d}W,L-{d % 30 + 1}' for d in range(1, 32))} * MON#1,TUE#2,WEDL",
    "long impossible lists": f"0 0 {','.join(['30', '31', '30W', '31W', 'L-29', 'L-30'] * 20)} 2 *",
    "no end of digits": f"{'9' * 900} * * * *",
    "a step of no end": f"*/{'9' * 900} * * * *",
    "zeros": f"{'0' * 900} * * * *",
    "Arabic digits": "٣ * * * *",
    "a superscript": "² * * * *",
    "full-width digits": "１５ * * * *",
    "NUL": "0\x00 * * * *",
    "only NUL": "\x00",
    "a separator that is white to Python": "0\x1c* * * *",
    "a wide space": "0\u3000* * * * *",
    "a lone surrogate": "\ud800 * * * *",
    "a letter that grows in capitals": "ß * * * *",
    "a dotless i in a name": "0 0 * * fr\u0131",
    "a dotless i in a macro": "@da\u0131ly",
    "an escape to the terminal": "\x1b[31m * * * *",
    "commas": "," * 900,
    "dashes": "-" * 900 + " * * * *",
    "slashes": "/" * 900 + " * * * *",
    "sharps": f"0 0 * * {'#' * 900}",
    "Ls": f"0 0 {'L' * 900} * *",
    "Ws": f"0 0 {'1W,' * 300}W * *",
    "a macro of no end": "@" + "a" * 900,
    "macros": "@daily @daily",
}
GOOD = {
    "long lists of days",
    "a long list",
    "a long list of ranges",
    "a long list of different ranges",
    "zeros",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_read_or_refused_at_once(name: str) -> None:
    found = outcome(HOSTILE[name])
    assert isinstance(found, Cron) is (name in GOOD)
    if isinstance(found, CronError):
        message = str(found)
        assert len(message) < 400
        assert message.isascii() and message.isprintable()


def test_every_value_in_every_field_fits() -> None:
    days = ",".join(str(n) for n in range(1, 32))
    months = "JAN,FEB,MAR,APR,MAY,JUN,JUL,AUG,SEP,OCT,NOV,DEC"
    hours = ",".join(str(n) for n in range(24))
    found = outcome(f"{EVERY_SECOND} {EVERY_SECOND} {hours} {days} {months} SUN,MON,TUE,WED,THU,FRI,SAT")
    assert isinstance(found, Cron)
    assert len(found.text) < LONGEST


IMPOSSIBLE = [
    *("0 0 31 2 *", "0 0 0 30 2 ?", "0 0 L-30 2 *", "0 0 31 4,6,9,11 ?", "0 0 */31 2-12/2 mon#5"),
    *("0 0 30W 2 *", "0 0 */30 2 1#5", "* * * 31 2,4,6,9,11 *", "0 0 */31 * tue#3"),
]


@pytest.mark.parametrize("expression", IMPOSSIBLE)
def test_the_impossible_is_refused_at_once(expression: str) -> None:
    assert "never fires" in str(outcome(expression))


@given(st.text(alphabet="0123456789*?,-/#LW@ \tMONFRIJAN", max_size=60) | st.text(max_size=40))
@example("0 0 29 2 1#5")
@settings(max_examples=400, deadline=None)
def test_any_text_is_a_cron_or_a_cron_error(text: str) -> None:
    found = outcome(text)
    if isinstance(found, Cron):
        assert Cron(found.text) == found
        assert found.describe("en") and found.describe("zh")
        assert next_fires(found, 0, ZoneInfo("Europe/Berlin"), 3)
