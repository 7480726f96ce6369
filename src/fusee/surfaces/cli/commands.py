"""Commands are functions: services before the slash, options after it, and an answer that is printed.

    @command()
    @click.argument("name")
    async def cancel(batches: BatchOperations, /, name: str) -> Answer: ...

A parameter before the slash is `out`, `shared`, or an attribute of the opened application.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import click

from fusee.errors import StoreUnavailable
from fusee.surfaces.cli.answer import Answer, Noun
from fusee.surfaces.cli.exits import Exit, failure_of
from fusee.surfaces.cli.follow import watch_list
from fusee.surfaces.cli.options import Command, Shared, WaitOption, limited, option
from fusee.surfaces.cli.output import Out, told_error

__all__ = ["command", "lists", "needs", "steer"]

T = TypeVar("T")
Body = Callable[..., Any]
Call = Callable[[Out, Sequence[Any], dict[str, Any]], Awaitable[Answer | None]]
WATCH = option("--watch -w", "Keep looking until Ctrl-C.")


def needs(body: Body) -> Sequence[str]:
    """The parameters before the slash."""
    names: tuple[str, ...] = body.__code__.co_varnames
    return names[: body.__code__.co_posonlyargcount]


def command(
    name: str | None = None, *, create: bool = False, cls: type[Command] = Command
) -> Callable[[Body], Command]:
    """A command from a function; with `create`, a database without a schema gets one."""

    def decorate(body: Body) -> Command:
        async def call(out: Out, services: Sequence[Any], given: dict[str, Any]) -> Answer | None:
            answer: Answer | None = body(*services, **given)
            return await answer if inspect.isawaitable(answer) else answer

        return _command(body, call, name, create, cls)

    return decorate


def lists(
    noun: Noun[T], name: str = "list", *, limit: int | None = 50, watch: bool = True
) -> Callable[[Body], Command]:
    """A command that lists things; the function fetches them."""

    def decorate(body: Body) -> Command:
        async def call(out: Out, services: Sequence[Any], given: dict[str, Any]) -> Answer | None:
            if given.pop("watch", False):
                await watch_list(out, noun, lambda: body(*services, **given))
            filtered = any(value for name, value in given.items() if name != "limit")
            return noun.many(await body(*services, **given), limit=given.get("limit"), filtered=filtered)

        for add in (limited(limit) if limit is not None else None, WATCH if watch else None):
            if add is not None:  # behind the filters in the help: the last decorator comes first there
                params = add(body).__click_params__  # type: ignore[attr-defined]
                params.insert(0, params.pop())
        return _command(body, call, name, False, Command)

    return decorate


def steer(
    noun: Noun[T],
    argument: str,
    metavar: str = "ID",
    *,
    name: str | None = None,
    items: bool = False,
    create: bool = False,
) -> Callable[[Body], Command]:
    """A command that does something to one thing or to many; the function does it to one.

    All of them are tried, also when one is refused; the exit code is that of the first refusal. With `items`
    the JSON is a list also for one.
    """

    def decorate(body: Body) -> Command:
        async def call(out: Out, services: Sequence[Any], given: dict[str, Any]) -> Answer:
            chosen = given.pop(argument)
            for name in ("key", "version"):
                if len(chosen) > 1 and given.get(name) is not None:
                    raise click.UsageError(f"--{name} goes with one {metavar}, not with several")
            done: list[Any] = []
            code = Exit.OK
            for one in chosen:
                try:
                    result = await body(*services, **{argument: one}, **given)
                except StoreUnavailable:
                    raise
                except Exception as error:
                    failure = failure_of(error)
                    if failure is None or len(chosen) == 1:
                        raise
                    code = code or failure.exit
                    key = "id" if metavar == "ID" else "name"
                    done.append({key: one, "error": {"kind": failure.kind, "message": str(failure)}})
                    if not out.json:
                        told_error(str(failure))
                    continue
                answer = result if isinstance(result, Answer) else noun.one(result)
                code = code or answer.exit
                if out.json:
                    done.append(answer.json())
                else:
                    answer.show(out)
            return Answer(done[0] if len(done) == 1 and not items else {"items": done}, exit=code)

        kind = click.IntRange(1) if metavar == "ID" else None
        click.argument(argument, metavar=f"{metavar}...", nargs=-1, required=True, type=kind)(body)
        return _command(body, call, name, create, Command)

    return decorate


def _command(body: Body, call: Call, name: str | None, create: bool, cls: type[Command]) -> Command:
    names = needs(body)

    async def work(shared: Shared, out: Out, given: dict[str, Any]) -> Answer | None:
        parts: dict[str, Any] = {"out": out, "shared": shared}
        if all(name in parts for name in names):
            return await call(out, [parts[name] for name in names], given)
        async with shared.opened(create=create) as app:
            services = [parts[name] if name in parts else getattr(app, name) for name in names]
            return await call(out, services, given)

    def callback(**given: Any) -> None:
        shared = Shared.of(click.get_current_context())
        out = Out(shared)
        WaitOption.of(given)
        answer = asyncio.run(work(shared, out, given))
        if answer is not None:
            answer.print(out)

    made = click.command(name or body.__name__.rstrip("_").replace("_", "-"), cls=cls)
    callback.__doc__ = body.__doc__
    callback.__click_params__ = getattr(body, "__click_params__", [])  # type: ignore[attr-defined]
    callback.body = body  # type: ignore[attr-defined]
    return made(callback)
