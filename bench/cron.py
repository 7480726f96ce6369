"""`python -m bench.cron`: how fast the next fire is found, beside cronsim and croniter.

All are measured in one run, in turns, so that a slow minute of the machine hits all alike; figures are
medians, and only their ratios mean anything. Each finds the same number of fires from the same start:
`next` by asking anew each time with the instant of the last one, as a dispatcher does; the others by the
iterator that they are.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from croniter import croniter
from cronsim import CronSim

from fusee.tasks.cron import Cron

START = datetime(2026, 1, 1, tzinfo=UTC)
MICROS = int(START.timestamp()) * 1_000_000


class Case(NamedTuple):
    name: str
    expression: str
    zone: str
    fires: int


CASES = (
    Case("every 15 s", "*/15 * * * * *", "UTC", 4_000),
    Case("every 5 min", "*/5 * * * *", "UTC", 4_000),
    Case("every 5 min, Berlin", "*/5 * * * *", "Europe/Berlin", 4_000),
    Case("daily, Berlin", "30 2 * * *", "Europe/Berlin", 1_000),
    Case("weekdays, New York", "0 9 * * mon-fri", "America/New_York", 1_000),
    Case("last day of the month", "0 0 L * *", "UTC", 240),
    Case("29 February", "0 0 29 2 *", "UTC", 10),
)


def fusee_next(case: Case) -> Iterator[object]:
    cron, zone, after = Cron.parse(case.expression), ZoneInfo(case.zone), MICROS
    while (found := cron.next(after, zone)) is not None:
        yield found
        after = found


def fusee_fires(case: Case) -> Iterator[object]:
    return Cron.parse(case.expression).fires(MICROS, ZoneInfo(case.zone))


def their_start(case: Case) -> datetime:
    # Both are quicker with datetime.UTC than with a ZoneInfo of that name: give them that.
    return START if case.zone == "UTC" else START.astimezone(ZoneInfo(case.zone))


def by_cronsim(case: Case) -> Iterator[object]:
    return CronSim(case.expression, their_start(case))


def by_croniter(case: Case) -> Iterator[object]:
    seconds = len(case.expression.split()) == 6
    iterator = croniter(case.expression, their_start(case), ret_type=datetime, second_at_beginning=seconds)
    while True:
        yield iterator.get_next()


CONTESTANTS: dict[str, Callable[[Case], Iterator[object]]] = {
    "fusee next": fusee_next,
    "fusee fires": fusee_fires,
    "cronsim": by_cronsim,
    "croniter": by_croniter,
}


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """Fires a second, by case and contestant."""
    found: dict[str, dict[str, list[float]]] = {
        case.name: {name: [] for name in CONTESTANTS} for case in CASES
    }
    for number in range(rounds + 1):
        for case in CASES:
            for name, start in CONTESTANTS.items():
                begin = perf_counter()
                count = sum(1 for _ in islice(start(case), case.fires))
                spent = perf_counter() - begin
                assert count == case.fires
                if number:  # the first round fills every cache, theirs and ours
                    found[case.name][name].append(count / spent)
    return {case: {name: median(rates) for name, rates in row.items()} for case, row in found.items()}


def parsing(rounds: int) -> float:
    """Expressions read a second, none of them remembered."""
    rates = []
    for _ in range(rounds):
        begin = perf_counter()
        for _ in range(100):
            for case in CASES:
                Cron(case.expression)
        rates.append(100 * len(CASES) / (perf_counter() - begin))
    return median(rates)


def show(rates: dict[str, dict[str, float]]) -> None:
    names = list(CONTESTANTS)
    print(f"{'fires a second, medians':24}" + "".join(f"{name:>14}" for name in names) + f"{'next/best':>12}")
    for case, row in rates.items():
        best = max(row["cronsim"], row["croniter"])
        cells = "".join(f"{row[name]:>14,.0f}" for name in names)
        print(f"{case:24}{cells}{row['fusee next'] / best:>11.1f}x")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cron", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead")
    asked = parser.parse_args()
    rates = measure(asked.rounds)
    read = parsing(asked.rounds)
    if asked.json:
        answer: dict[str, Any] = {"fires_per_s": rates, "parsed_per_s": read}
        print(json.dumps(answer, indent=2))
        return
    show(rates)
    print(f"{'expressions read a second':24}{read:>13,.0f}")


if __name__ == "__main__":
    main()
