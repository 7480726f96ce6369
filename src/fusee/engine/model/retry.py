"""When a run that did not succeed is tried again."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fusee.errors import Invalid
from fusee.values.durations import seconds_from
from fusee.values.kinds import Kind, Seconds, or_null

__all__ = ["BACKOFFS", "RETRY", "RETRYABLE", "RetryPolicy"]

BACKOFFS = ("fixed", "linear", "exponential")
RETRYABLE = ("failed", "timed_out", "lost")

MOST_ATTEMPTS = 1000
LONGEST_DELAY = 30 * 86400.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """At most `max_attempts` tries, `backoff` apart; `on` says which ends are retried.

    fixed: base, base, base …; linear: base, 2·base, 3·base …; exponential: base, 2·base, 4·base …;
    never longer than `max`, then spread by ±`jitter` (a share).
    A lost attempt (its worker died) is queued again at once: waiting would not help.
    """

    max_attempts: int = 3
    backoff: str = "exponential"
    base: float = 2.0
    max: float = 3600.0
    jitter: float = 0.1
    on: tuple[str, ...] = RETRYABLE

    def __post_init__(self) -> None:
        def refuse(what: str) -> None:
            raise Invalid(f"retry.{what}", field="retry")

        if type(self.max_attempts) is not int or not 1 <= self.max_attempts <= MOST_ATTEMPTS:
            refuse(
                f"max_attempts must be a whole number from 1 to {MOST_ATTEMPTS}, not {self.max_attempts!r}"
            )
        if self.backoff not in BACKOFFS:
            refuse(f"backoff must be one of {', '.join(BACKOFFS)}, not {self.backoff!r}")
        for name in ("base", "max"):
            value = getattr(self, name)
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not 0 <= value <= LONGEST_DELAY
            ):
                refuse(f"{name} must be seconds from 0 to {LONGEST_DELAY:.0f}, not {value!r}")
        jitter = self.jitter
        if isinstance(jitter, bool) or not isinstance(jitter, int | float) or not 0 <= jitter <= 1:
            refuse(f"jitter must be a share from 0 to 1, not {jitter!r}")
        if not isinstance(self.on, tuple) or not set(self.on) <= set(RETRYABLE):
            refuse(f"on may hold {', '.join(RETRYABLE)}, not {self.on!r}")

    def allows(self, end: str, spent: int) -> bool:
        """Whether, after `spent` counted attempts of which the last ended so, another may start."""
        return end in self.on and spent < self.max_attempts

    def delay(self, spent: int, chance: float = 0.5) -> float:
        """Seconds before the next attempt; `chance` in [0, 1] places it within the jitter."""
        if self.backoff == "fixed":
            seconds = self.base
        elif self.backoff == "linear":
            seconds = self.base * spent
        else:
            # Past 2**40 the cap decides anyway, and a float must not overflow.
            seconds = self.base * 2.0 ** min(spent - 1, 40)
        return min(seconds, self.max) * (1 + self.jitter * (2 * chance - 1))

    def to_dict(self) -> dict[str, Any]:
        """Only what differs from the default."""
        plain = RetryPolicy()
        fields = ("max_attempts", "backoff", "base", "max", "jitter", "on")
        return {f: getattr(self, f) for f in fields if getattr(self, f) != getattr(plain, f)}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> RetryPolicy:
        """Read what a user or the store wrote; refuses what it does not know."""
        known = {"max_attempts", "backoff", "base", "max", "jitter", "on"}
        if unknown := set(value) - known:
            name = sorted(str(one) for one in unknown)[0][:60]
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(known))}"
            raise Invalid(f"retry has no {name!r}; {hint}", field="retry")
        fields = dict(value)
        if isinstance(fields.get("backoff"), str):
            fields["backoff"] = fields["backoff"].lower()
        if "on" in fields:
            if not isinstance(fields["on"], list | tuple) or not all(
                isinstance(e, str) for e in fields["on"]
            ):
                raise Invalid(f"retry.on must be a list of {', '.join(RETRYABLE)}", field="retry")
            fields["on"] = tuple(end.lower() for end in fields["on"])
        return cls(**fields)

    @classmethod
    def as_stored(cls, value: Mapping[str, Any]) -> RetryPolicy:
        """Read what the store holds: an option, or a value of one, that only a newer version knows counts as
        not given."""
        plain = cls()
        known = {key: value[key] for key in value if key in cls.__slots__}
        if "on" in known:
            known["on"] = tuple(end for end in known["on"] if end in RETRYABLE)
        if known.get("backoff", plain.backoff) not in BACKOFFS:
            del known["backoff"]
        return cls(**known)


class _Retry(Kind):
    """A retry policy as callers write it: an object in which durations may be texts; null is not given."""

    shown = dict[str, Any]

    def read(self, value: Any, what: str) -> Any:
        if isinstance(value, RetryPolicy):
            return value
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                raise Invalid(f"{what} must be an object, or the JSON text of one", field=what) from None
        if not isinstance(value, Mapping):
            raise Invalid(f"{what} must be an object, not {value!r:.60}", field=what)
        given = {name: part for name, part in value.items() if part is not None}
        try:
            for name in ("base", "max"):
                if isinstance(given.get(name), str):
                    given[name] = seconds_from(given[name], f"{what}.{name}")
            return RetryPolicy.from_dict(given)
        except Invalid as error:
            raise Invalid(str(error), field=what) from None

    def schema(self) -> dict[str, Any]:
        seconds = Seconds(0, LONGEST_DELAY).schema()
        ends = {"type": "array", "items": {"type": "string", "enum": [*RETRYABLE]}}
        members: dict[str, Any] = {
            "max_attempts": {"type": "integer", "minimum": 1, "maximum": MOST_ATTEMPTS, "default": 3},
            "backoff": {"type": "string", "examples": [*BACKOFFS], "default": "exponential"},
            "base": {**seconds, "default": 2.0, "description": "Seconds before the second attempt."},
            "max": {**seconds, "default": 3600.0, "description": "The longest delay."},
            "jitter": {
                "type": "number",
                "minimum": 0,
                "maximum": 1,
                "default": 0.1,
                "description": "A share: 0.1 spreads by ±10 %.",
            },
            "on": {**ends, "description": "Which ends are retried; [] retries nothing."},
        }
        nullable = {name: or_null(member) for name, member in members.items()}
        policy = {"type": "object", "properties": nullable, "additionalProperties": False}
        return {"anyOf": [policy, {"type": "string"}], "examples": [{"max_attempts": 5, "base": "10s"}]}


RETRY = _Retry()
