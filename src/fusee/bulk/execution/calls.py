"""Calling a business for an item or a chunk: what it may return, retries of chunks, and giving up."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec

from fusee.bulk.business import BulkContext, ChunkFailed, parameters_of
from fusee.bulk.execution.hanging import HangingCall, Threads, after
from fusee.bulk.model.job import Quarantined
from fusee.bulk.sources import ABSENT, BadItem, Placed
from fusee.engine.model.outcome import Abandon, Retry, Skip

__all__ = ["Calls", "FailedItem", "ItemTimedOut", "Tries", "Unfinished"]

LONGEST_PAUSE = 300.0
LONGEST_ERROR = 2000
LONGEST_ITEM = 2000
MOST_THREADS = 256


class Unfinished(Exception):
    """The job stops while an item waits for a retry: the item is left as it is, and started again later."""


class ItemTimedOut(Exception):
    """A call for an item (or a chunk) took longer than `item_timeout`."""

    def __init__(self, seconds: float, still: str = "") -> None:
        """`still`: where the call continues, when it could not be stopped; then the item is not retried."""
        text = f"took longer than {seconds:g} s (item_timeout)"
        if still:
            text += f" and still runs {still}, so it is not retried while it does"
        super().__init__(text)
        self.still_runs = bool(still)


class Tries(Protocol):
    """What calls need of an item runner."""

    def begin(self, items: int) -> None:
        """A retry of so many items begins."""

    def rest(self) -> None:
        """The items wait for their retry."""

    def judge(self, error: BaseException, items: Sequence[int]) -> BaseException:
        """Returns the failure of these items. Raises an error that is not theirs and ends the item runner."""


@dataclass(frozen=True, slots=True)
class FailedItem:
    """An item that failed and is not retried."""

    index: int
    """Its place in the job."""
    item: Any
    error: BaseException | str
    attempts: int

    def quarantined(self) -> Quarantined:
        index, item, position = self.index, self.item, None
        if isinstance(item, Placed):
            index, item = item.index, item.item
            position = None if index == self.index else self.index
        return Quarantined(
            index=index,
            error=_told(self.error),
            attempts=self.attempts,
            item=_shown(item),
            position=position,
        )


class Calls:
    """The function of a business, prepared to be called for the items of one job."""

    def __init__(
        self,
        function: Callable[..., Any],
        context: BulkContext,
        *,
        chunk: int | None,
        attempts: int,
        backoff: float,
        sparse: bool = False,
        placed: bool = False,
        keyed: bool = False,
        hanging: Sequence[HangingCall] = (),
    ) -> None:
        """`hanging`: calls of this job that an earlier segment left running in this process."""
        self.chunked = chunk is not None
        self.chunk = chunk or 1
        self.attempts = attempts
        self.backoff = backoff
        wants = parameters_of(function)
        self.indexed = wants.index is not None
        """Whether `call` takes (index, item), or for a chunk (indexes, items)."""
        self.most = 2**31
        """The most concurrent calls."""
        self._stopped = asyncio.Event()
        self._threads: Threads | None = None
        bound = partial(function, **{wants.job: context}) if wants.job else function
        if not inspect.iscoroutinefunction(function):
            self._threads, self.most = Threads(), MOST_THREADS
            bound = self._in_thread(self._threads, bound)
        call = _with_index(bound, wants.index) if wants.index else bound
        if sparse:
            call = self._passing_over_chunk(call) if self.chunked else self._passing_over(call)
        if placed:
            call = self._in_their_places(call)
        if hanging:
            call = after(hanging, call, indexed=self.indexed, keyed=keyed)
            self.indexed = True
        self.call: Callable[[Any], Awaitable[Any]] = call

    def iterate(self, items: Sequence[Any], first: int) -> Iterator[Any]:
        """Returns an iterator over what `call` takes; its length hint says how many items are left."""
        if self.indexed:
            return iter(list(zip(range(first, first + len(items)), items, strict=True)))
        return iter(items)

    def stop(self) -> None:
        """Leave the items that wait for a retry as they are."""
        self._stopped.set()

    def close(self) -> None:
        if self._threads is not None:
            self._threads.close()

    # -- one item

    def pause_after(self, attempt: int, error: BaseException | str) -> float | None:
        """Returns the seconds until the next attempt, after so many failed ones; None when there is none."""
        if attempt >= self.attempts or isinstance(error, Abandon):
            return None
        if isinstance(error, ItemTimedOut) and error.still_runs:
            return None
        if isinstance(error, Retry) and error.after is not None:
            return error.after
        return min(LONGEST_PAUSE, self.backoff * 2.0 ** min(attempt - 1, 20))

    # -- a chunk

    async def answered(self, part: Sequence[Any], at: int, answer: Any, tries: Tries) -> list[FailedItem]:
        """A chunk handler returned something: returns the items that failed all their attempts."""
        failed = _failed_in(part, answer)
        return await self._rounds(part, at, failed, tries, whole=False) if failed else []

    async def chunk_again(
        self, part: Sequence[Any], at: int, error: BaseException, tries: Tries
    ) -> list[FailedItem]:
        """A chunk handler raised: all of its items failed, unless the error says which."""
        if isinstance(error, Skip):
            return []
        if isinstance(error, ChunkFailed):
            return await self._rounds(part, at, _failed_in(part, error), tries, whole=False)
        failed: dict[int, BaseException | str] = dict.fromkeys(range(len(part)), error)
        return await self._rounds(part, at, failed, tries, whole=True)

    async def _rounds(
        self,
        part: Sequence[Any],
        at: int,
        failed: dict[int, BaseException | str],
        tries: Tries,
        *,
        whole: bool,
    ) -> list[FailedItem]:
        """Retry the failed items together; in the last round, when it is not known which of them are at
        fault, each alone: so a bad item does not fail its whole chunk."""
        given_up: list[FailedItem] = []
        attempt = 1
        while failed:
            for position in [p for p, e in failed.items() if self.pause_after(attempt, e) is None]:
                error = failed.pop(position)
                given_up.append(FailedItem(at + position, part[position], error, attempt))
            if not failed:
                break
            tries.rest()
            await self._pause(attempt, next(iter(failed.values())))
            attempt += 1
            alone = whole and attempt >= self.attempts
            groups = [[p] for p in failed] if alone else [list(failed)]
            failed, whole = {}, False
            for group in groups:
                items = [part[p] for p in group]
                tries.begin(len(items))
                try:
                    answer = await self.call(([at + p for p in group], items) if self.indexed else items)
                    bad = _failed_in(items, answer)
                except Skip:
                    bad = {}
                except ChunkFailed as error:
                    bad = _failed_in(items, error)
                except BaseException as error:
                    fault = tries.judge(error, [at + p for p in group])
                    bad, whole = dict.fromkeys(range(len(items)), fault), True
                failed |= {group[nr]: error for nr, error in bad.items()}
        return given_up

    async def _pause(self, attempt: int, error: BaseException | str) -> None:
        try:
            async with asyncio.timeout(self.pause_after(attempt, error)):
                await self._stopped.wait()
        except TimeoutError:
            return
        raise Unfinished

    # -- how the function is called

    def _in_thread(self, threads: Threads, function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        def call(*given: Any, **named: Any) -> Awaitable[Any]:
            return threads.call(partial(function, *given, **named))

        return call

    def _in_their_places(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Items of another job are called with the index that they have there."""
        chunked, indexed = self.chunked, self.indexed

        def moved(given: Any) -> Any:
            items = given[1] if indexed else given
            if not chunked:
                return call((items.index, items.item) if indexed else items.item)
            plain = [one.item for one in items]
            return call(([one.index for one in items], plain) if indexed else plain)

        return moved

    def _passing_over(self, call: Callable[..., Any]) -> Callable[..., Any]:
        indexed = self.indexed

        async def some(item: Any) -> Any:
            given = item[1] if indexed else item
            if isinstance(given, BadItem):
                raise Abandon(given.error)
            if given is not ABSENT:
                await call(item)

        return some

    def _passing_over_chunk(self, call: Callable[..., Any]) -> Callable[..., Any]:
        indexed = self.indexed

        async def some(given: Any) -> Any:
            items = given[1] if indexed else given
            bad: dict[int, BaseException | str] = {
                nr: Abandon(item.error) for nr, item in enumerate(items) if isinstance(item, BadItem)
            }
            kept = [nr for nr, item in enumerate(items) if item is not ABSENT and nr not in bad]
            if kept:
                left = [items[nr] for nr in kept]
                try:
                    answer = await call(([given[0][nr] for nr in kept], left) if indexed else left)
                    failed = _failed_in(left, answer)
                except ChunkFailed as error:
                    failed = _failed_in(left, error)
                bad |= {kept[nr]: error for nr, error in failed.items()}
            return ChunkFailed(bad) if bad else None

        return some


def _with_index(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def call(pair: tuple[Any, Any]) -> Any:
        return function(pair[1], **{name: pair[0]})

    return call


def _failed_in(part: Sequence[Any], answer: Any) -> dict[int, BaseException | str]:
    """Returns position → error, from what a chunk handler returned or raised."""
    if isinstance(answer, ChunkFailed):
        wrong = [p for p in answer.failed if type(p) is not int or not 0 <= p < len(part)]
        if wrong:
            raise ValueError(
                f"ChunkFailed names position {wrong[0]!r} of a chunk of {len(part)}: count from 0"
            )
        return dict(answer.failed)
    if isinstance(answer, list | tuple):
        if len(answer) != len(part):
            raise ValueError(f"the handler returned {len(answer)} results for a chunk of {len(part)} items")
        return {nr: one for nr, one in enumerate(answer) if isinstance(one, BaseException)}
    return {}


def _told(error: BaseException | str) -> str:
    if isinstance(error, str):
        return error[:LONGEST_ERROR] or "failed"
    text = str(error)
    kind = type(error).__name__
    return f"{kind}: {text}"[:LONGEST_ERROR] if text else kind


def _shown(item: Any) -> str:
    if isinstance(item, BadItem):
        return item.raw.decode("utf-8", "replace")[:LONGEST_ITEM]
    try:
        text = msgspec.json.encode(item).decode()
    except (TypeError, ValueError, RecursionError):
        text = repr(item)
    return text[:LONGEST_ITEM]
