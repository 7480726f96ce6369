"""Rows that were set aside: how long they are remembered, and how many."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError, OperationalError

from fusee.engine.store import set_aside
from fusee.engine.store.set_aside import (
    FORGOTTEN_AFTER,
    TRY_AGAIN_AFTER,
    SetAside,
    UnreadableRow,
    is_about_a_row,
)
from fusee.errors import Invalid, LeaseLost, StoreUnavailable, Unreadable
from fusee.events import RowReadable, RowSetAside
from tests.chaos.inside import make_app, until


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def aside(now: list[float]) -> SetAside:
    return SetAside(lambda: now[0])


def read(row: Any) -> int:
    return int(row.text)


def rows(*texts: str) -> list[Any]:
    return [SimpleNamespace(id=nr, text=text) for nr, text in enumerate(texts)]


def test_what_a_list_met_is_forgotten_when_nobody_meets_it_again(aside: SetAside, now: list[float]) -> None:
    assert aside.readable("runs", "run", rows("7", "seven"), read) == [7]
    assert [row[:2] for row in aside.rows()] == [("run", 1)]
    now[0] += FORGOTTEN_AFTER / 2
    aside.readable("runs", "run", rows("7", "seven"), read)
    now[0] += FORGOTTEN_AFTER / 2 + 1
    assert len(aside.rows()) == 1, "met again meanwhile"
    now[0] += FORGOTTEN_AFTER / 2
    assert aside.rows() == [], "it may have been deleted"


def test_what_a_loop_met_is_tried_again_and_not_forgotten(aside: SetAside, now: list[float]) -> None:
    aside.add("scan", 3, UnreadableRow("task", 3, "no"))
    assert aside.due("scan") == []
    now[0] += TRY_AGAIN_AFTER
    assert aside.due("scan") == [3] and aside.keys("scan") == [3]
    now[0] += 10 * FORGOTTEN_AFTER
    assert aside.keys("scan") == [3]


def test_a_row_that_two_places_met_is_told_of_once(aside: SetAside) -> None:
    heard: list[tuple[int, bool]] = []
    aside.tell = lambda row, readable: heard.append((row.id, readable))
    aside.add("scan", 3, UnreadableRow("task", 3, "no"))
    aside.add("ended task", 77, UnreadableRow("task", 3, "no"))
    aside.clear("scan", 3)
    assert heard == [(3, False)]
    aside.clear("ended task", 77)
    aside.clear("ended task", 77)
    assert heard == [(3, False), (3, True)]


def test_so_many_are_no_longer_single_rows(aside: SetAside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(set_aside, "MOST", 2)
    for nr in (1, 2, 2):
        aside.add("scan", nr, UnreadableRow("task", nr, "no"))
    with pytest.raises(Unreadable, match="2 others are set aside already"):
        aside.add("scan", 3, UnreadableRow("task", 3, "no"))


class Meddling:
    """A row that, when it is looked at once armed, has another thread set a further one aside."""

    id, error, armed = 1, "no", False

    def __init__(self, aside: SetAside) -> None:
        add = aside.add
        self.other = threading.Thread(target=add, args=("scan", 2, UnreadableRow("task", 2, "no")))

    @property
    def kind(self) -> str:
        if self.armed and self.other.ident is None:
            self.other.start()
            self.other.join(0.2)
        return "task"


def test_rows_are_listed_while_another_thread_sets_one_aside(aside: SetAside) -> None:
    row: Any = Meddling(aside)
    aside.add("scan", 1, row)
    row.armed = True
    assert [found.id for found in aside.rows()] == [1]
    row.other.join()
    assert [found.id for found in aside.rows()] == [1, 2]


async def test_subscribers_hear_of_a_row_on_the_thread_of_the_loop(tmp_path: Path) -> None:
    app, heard = make_app(f"sqlite:///{tmp_path}/fusee.db"), list[tuple[str, int]]()
    app.bus.subscribe(RowSetAside, lambda _: heard.append(("aside", threading.get_ident())))
    app.bus.subscribe(RowReadable, lambda _: heard.append(("readable", threading.get_ident())))
    async with app:
        store = app.store
        row = UnreadableRow("task", 1, "no")
        await store.database.write(lambda _: store.context.set_aside.add("scan", 1, row))
        await store.database.write(lambda _: store.context.set_aside.clear("scan", 1))
        await until(lambda: len(heard) == 2)
    here = threading.get_ident()
    assert heard == [("aside", here), ("readable", here)]


def test_only_what_a_row_holds_counts_as_its_fault() -> None:
    for error in (
        ValueError(),
        KeyError(),
        AssertionError(),
        Invalid("x"),
        IntegrityError("", {}, Exception()),
    ):
        assert is_about_a_row(error), error
    for error in (
        StoreUnavailable("x"),
        LeaseLost("x"),
        OperationalError("", {}, Exception()),
        sqlite3.OperationalError(),
        ConnectionError(),
        TimeoutError(),
        MemoryError(),
    ):
        assert not is_about_a_row(error), error
