"""The options that every command takes, before or after its name, those that many share, and those that are
made from the declared fields of a noun."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fusee.values.durations import duration_text
from fusee.values.kinds import FLAG, Kind, Number, Seconds, Whole, Words

if TYPE_CHECKING:
    from fusee.config import Config
    from fusee.values.fields import Field, Form

__all__ = [
    "ALLOW_UNKNOWN",
    "KEY",
    "TIMEOUT",
    "VERSION",
    "Command",
    "Group",
    "Plural",
    "Shared",
    "WaitOption",
    "duration",
    "limited",
    "option",
    "options_of",
    "reasoned",
    "shared_options",
    "waits",
]

Option = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass
class Shared:
    """What was said on the command line for every command."""

    config: Path | None = None
    database: str | None = None
    namespace: str | None = None
    json: bool = False
    verbose: int = 0
    quiet: bool = False
    opener: Callable[..., AbstractAsyncContextManager[Any]] | None = None
    """Opens the application for one command; the assembly sets it."""

    @classmethod
    def of(cls, context: click.Context) -> Shared:
        found = context.find_root().ensure_object(cls)
        assert isinstance(found, cls)
        return found

    def opened(self, *, create: bool = False) -> AbstractAsyncContextManager[Any]:
        assert self.opener is not None
        return self.opener(self, create=create)

    def overrides(self) -> dict[str, Any]:
        """The flags as settings; `None` counts as not given."""
        level = "debug" if self.verbose else "warning" if self.quiet else None
        return {
            "namespace": self.namespace,
            "database": {"url": self.database},
            "logging": {"level": level},
        }

    def load(self, more: Mapping[str, Any] | None = None) -> Config:
        """Defaults, file, environment, flags."""
        from fusee.config import load

        return load(self.config, overrides=merged(self.overrides(), more or {}))


def merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """`more` over `base`, section by section; what is None in `more` leaves the base as it is."""
    answer = dict(base)
    for name, value in more.items():
        if isinstance(value, Mapping) and isinstance(answer.get(name), Mapping):
            answer[name] = merged(answer[name], value)
        elif value is not None:
            answer[name] = value
    return answer


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value and parameter.name:
        setattr(Shared.of(context), parameter.name, value)


def shared_options(*, hidden: bool) -> list[click.Option]:
    """On a command all but --json are hidden: its help is for what is its own."""

    def option(*names: str, **settings: Any) -> click.Option:
        return click.Option(names, expose_value=False, callback=_remember, **settings)

    return [
        option("--json", is_flag=True, help="Print JSON for programs, also for errors."),
        option(
            "--config",
            metavar="FILE",
            type=click.Path(path_type=Path),
            hidden=hidden,
            help="Configuration file. [default: $FUSEE_CONFIG, fusee.toml, fusee.yaml]",
        ),
        option(
            "--database",
            metavar="URL",
            hidden=hidden,
            help="Database, such as sqlite:///fusee.db or postgresql://user:password@host/name.",
        ),
        option("--namespace", metavar="NAME", hidden=hidden, help="The namespace (tenant) to use."),
        option("-v", "--verbose", count=True, hidden=hidden, help="Print more, also tracebacks."),
        option("-q", "--quiet", is_flag=True, hidden=hidden, help="Print less."),
    ]


def _examples(text: str | None) -> str | None:
    """Keeps the lines of the example as they are written; one may stand behind `Example:` itself."""
    return text and re.sub(r"^( *)Example:(?: (\S.*)|)$", _example, text, flags=re.MULTILINE)


def _example(found: re.Match[str]) -> str:
    indent, command = found[1], found[2]
    return f"{indent}\b\n{indent}Example:" + (f"\n{indent}  {command}" if command else "")


class Command(click.Command):
    """A command that takes the shared options too."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.help = _examples(self.help)
        taken = {name for parameter in self.params for name in parameter.opts}
        self.params += [o for o in shared_options(hidden=True) if not taken & set(o.opts)]


class Group(click.Group):
    command_class = Command
    group_class = type

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.help = _examples(self.help)
        self.params += shared_options(hidden=True)


class Plural(Group):
    """A group under the plural of its name: the same commands, and `list` when none is named."""

    def __init__(self, name: str, group: click.Group) -> None:
        super().__init__(name, commands=group.commands, help=group.help)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = {name: option for option in self.params for name in option.opts}
        at = 0
        while at < len(args) and (option := known.get(args[at].partition("=")[0])):
            at += 1 if "=" in args[at] or getattr(option, "is_flag", False) or option.name == "verbose" else 2
        if args[at:] == [] or (args[at].startswith("-") and args[at] not in ctx.help_option_names):
            args = [*args[:at], "list", *args[at:]]
        return super().parse_args(ctx, args)


def option(names: str, help: str, **settings: Any) -> Option:
    """`option("--rate -r N", "Starts a second.", type=float)`: its names, then what stands for the value.

    Without a word for the value, a `type` or `choices`, it is a flag. A word in small letters is the name of
    the parameter.
    """
    words = names.split(" ")
    named = [word for word in words if word.startswith("-") or (word.isidentifier() and word.islower())]
    metavar = words[-1] if words[-1] not in named else None
    if "choices" in settings:
        settings["type"] = click.Choice(settings.pop("choices"), case_sensitive=False)
    if metavar is None and "type" not in settings:
        settings["is_flag"] = True
    return click.option(*named, metavar=metavar, help=help, **settings)


def duration(*, least: float = 0.0) -> Callable[[click.Context, click.Parameter, str | None], float | None]:
    """An option's callback: seconds from `5m`, `1h30m`, `250ms`, `90`."""

    def parse(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
        if value is None:
            return None
        from fusee.config import parse_duration

        try:
            seconds = parse_duration(value)
        except ValueError as error:
            raise click.BadParameter(str(error), context, parameter) from None
        if seconds < least:
            raise click.BadParameter(f"must be at least {least:g} s", context, parameter)
        return seconds

    return parse


def limited(default: int) -> Option:
    shown = {"default": default, "show_default": True, "type": click.IntRange(1, 1000)}
    return option("--limit -n N", "List at most this many.", **shown)


def reasoned(default: str | None = None, *, kept: str) -> Option:
    return option("--reason TEXT", f"Why; kept with {kept}.", default=default, show_default=True)


@dataclass(frozen=True, slots=True)
class WaitOption:
    """`--wait` was given."""

    timeout: float | None = None

    @staticmethod
    def of(given: dict[str, Any]) -> None:
        """Replaces the two options by one: `wait`, which is None when nobody waits."""
        if "waits" in given:
            wait = WaitOption(given.pop("wait_timeout"))
            given["wait"] = wait if given.pop("waits") else None


def waits(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--wait` and `--wait-timeout`; the command gets one parameter, `wait: WaitOption | None`."""
    wait = option("--wait -w waits", "Follow it to its end; exit 5 unless it succeeds.")
    timeout = option("--wait-timeout TIME", "With --wait: exit 124 after this long.", callback=duration())
    return wait(timeout(function))


KEY = option("--key TEXT", "Idempotency key: a repeated command with the same key changes nothing.")
TIMEOUT = option("--timeout TIME", "Exit 124 after this long, such as 5m.", callback=duration())
VERSION = option("--version N", "Refuse unless it is still at this version.", type=click.IntRange(1))
ALLOW_UNKNOWN = option("--allow-unknown", "Accept handlers that no worker has registered yet.")


F = TypeVar("F", bound=Callable[..., Any])


def options_of(
    form: Form[Any],
    *names: str,
    metavar: str | None = None,
    defaults: bool = True,
    callback: Callable[..., Any] | None = None,
    **flags: str,
) -> Callable[[F], F]:
    """An option for each of these fields, in this order; one that is not given is None.

    `flags` are shorter names: `item_attempts="attempts"` makes `--attempts`; several are separated by blanks.
    Without `defaults` the help names no default: the command changes something that has a value. The service
    checks the values, unless a `callback` does it while the command line is read.
    """

    def decorate(command: F) -> F:
        for name in reversed((*names, *flags)):
            field = form.fields[name]
            text = field.help + (_default(field, metavar) if defaults else "")
            command = _option_of(field, flags.get(name, name), metavar, text, callback)(command)
        return command

    return decorate


def _default(field: Field, metavar: str | None) -> str:
    if field.default in (MISSING, None, "", False):
        return ""
    lasts = isinstance(field.kind, Seconds) or metavar == "TIME"
    value = duration_text(field.default) if lasts else field.default
    return f"  [default: {value}]"


def _option_of(
    field: Field, flags: str, metavar: str | None, text: str, callback: Callable[..., Any] | None
) -> Callable[[F], F]:
    names = [f"--{flag.replace('_', '-')}" for flag in flags.split()]
    if field.kind is FLAG:
        return click.option(f"{names[0]}/--no-{names[0][2:]}", field.name, default=None, help=text)
    kind = _type_of(field.kind)
    shown = metavar or (None if isinstance(kind, click.Choice) else field.kind.word)
    return click.option(*names, field.name, type=kind, metavar=shown, help=text, callback=callback)


def _type_of(kind: Kind) -> click.ParamType[Any] | None:
    match kind:
        case Whole(least=least, most=most):
            return click.IntRange(least, most)
        case Number(least=least, most=most):
            return click.FloatRange(least, most)
        case Words(words=words):
            return click.Choice([str(word) for word in words], case_sensitive=False)
    return click.FLOAT if kind.schema().get("type") == "number" else None
