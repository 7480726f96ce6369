"""Draws what was played: a row for each fire, its mark where it was due, bars where its attempts ran.

A panel with its own background, so that it reads on a light page and on a dark one; states differ by shape
and by word, not by colour alone.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from xml.sax.saxutils import escape

from tools.timelines.stage import Attempt, Played, Shown

__all__ = ["draw", "label_of", "moment_of", "outcome_of"]

WIDTH = 760
PAD = 14
ROW = 26
LETTER = 6.5
"""Pixels that a letter takes, more or less."""

STYLE = """
text{font:12px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#1f2328}
.q{fill:#59636e}.t{font-weight:600;font-size:13px}
.p{fill:#fff;stroke:#d0d7de}.g{stroke:#d8dee4}.w{stroke:#59636e;stroke-width:1.5;stroke-dasharray:3 3}
.o{fill:#dbe1e8}.k{stroke:#1f2328;stroke-width:1.6;fill:none}.s{fill:#1f2328;stroke:none}
.ok{fill:#2f76b8}.go{fill:#2f76b8;opacity:.5}.no{fill:url(#h);stroke:#b3470c}
.ca{fill:none;stroke:#59636e;stroke-width:1.5;stroke-dasharray:2 2}
.hb{fill:#fbd9c3}.hl{stroke:#b3470c;stroke-width:2.5}
@media (prefers-color-scheme:dark){
text{fill:#e6edf3}.q{fill:#9aa4ae}.p{fill:#0d1117;stroke:#3d444d}.g{stroke:#2a3038}.w{stroke:#9aa4ae}
.o{fill:#21272f}.k{stroke:#e6edf3}.s{fill:#e6edf3}.ok,.go{fill:#5aa2e0}.no{stroke:#f0883e}
.ca{stroke:#9aa4ae}.hb{fill:#4a2a12}.hl{stroke:#f0883e}}
"""
HATCH = (
    '<pattern id="h" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect class="hb" width="6" height="6"/><path class="hl" d="M0 0V6"/></pattern>'
)
MARKS = {
    "run": '<path class="s" d="M{l} {t}H{r}L{x} {b}Z"/>',
    "queue": '<path class="k" d="M{l} {t}H{r}L{x} {b}Z"/>',
    "skip": '<path class="k" d="M{l} {t}L{r} {b}M{r} {t}L{l} {b}"/>',
    "miss": '<circle class="k" cx="{x}" cy="{y}" r="4"/>',
    "alert": '<path class="s" d="M{x} {t}L{r} {y}L{x} {b}L{l} {y}Z"/>',
}
MEANINGS = {
    "run": "due, to run",
    "queue": "due, into the line",
    "skip": "skipped",
    "miss": "missed",
    "alert": "alert",
    "wait": "waits",
    "succeeded": "runs, succeeds",
    "running": "still runs",
    "failed": "runs, fails",
    "canceled": "runs, is canceled",
    "away": "no dispatcher",
    "paused": "the task is paused",
}
WAITS = ("blocked", "pending", "delayed")
BARS = {"succeeded": "ok", "running": "go", "failed": "no", "canceled": "ca"}


def moment_of(played: Played, at: float) -> str:
    """As the axis says it: seconds from the beginning, or the time of day."""
    if not played.scene.clock:
        return f"{_n(at)} s"
    moment = datetime.fromtimestamp(played.scene.begin_us / 1_000_000 + at, UTC)
    return moment.strftime("%H:%M:%S" if moment.second else "%H:%M")


def label_of(played: Played, one: Shown) -> str:
    """The row's name: when it was due, of which task where there are several, of which shard."""
    parts = [] if len({shown.task for shown in played.shown}) == 1 else [one.task]
    parts += ["by hand"] if one.fire.cause == "manual" else [moment_of(played, one.at)]
    siblings = sum(1 for other in played.shown if (other.task, other.at) == (one.task, one.at))
    if siblings > 1:
        parts.append(f"shard {one.fire.shard}")
    return " ".join(parts)


def outcome_of(one: Shown) -> str:
    """How it went, in a word or two."""
    if one.fire.decision == "skip":
        return f"skipped: {one.fire.code}"
    if one.fire.decision == "miss":
        return "missed"
    if one.status in WAITS:
        return "waits"
    if one.fire.cause == "backfill":
        return f"{one.status}, backfill"
    last = one.attempts[-1].number if one.attempts else 0
    return f"{one.status}, attempt {last}" if last > 1 else str(one.status)


def draw(played: Played) -> str:
    scene = played.scene
    rows = sorted(played.shown, key=lambda one: (one.at, one.fire.shard))
    labels = [label_of(played, one) for one in rows]
    alerts: dict[str, list[float]] = {}
    for at, body in played.alerts:
        alerts.setdefault(f"alert: {body['event']}", []).append(at)
    left = PAD + max(len(text) for text in [*labels, *alerts]) * LETTER + 10
    right = WIDTH - PAD - max(len(outcome_of(one)) for one in rows) * LETTER - 10
    picture = _Picture(scene.first, scene.until, left, right)
    top = PAD + 40
    bottom = top + ROW * (len(rows) + len(alerts))
    if scene.away is not None:
        picture.band("away", *scene.away, top, bottom)
    if played.paused_at is not None:
        picture.band("paused", played.paused_at, scene.until, top, bottom)
    picture.axis(scene.tick, lambda at: moment_of(played, at), top, bottom)
    for number, (one, label) in enumerate(zip(rows, labels, strict=True)):
        picture.row(one, label, top + number * ROW)
    for number, (label, times) in enumerate(alerts.items(), len(rows)):
        y = top + number * ROW
        picture.text(PAD, y + 21, label, "q")
        for at in times:
            picture.mark("alert", at, y + 17)
    height = picture.legend(bottom + 12) + PAD
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
        f' height="{height}" role="img" aria-labelledby="t d">',
        f'<title id="t">{escape(scene.title)}</title>',
        f'<desc id="d">{escape(scene.story)}</desc>',
        f"<style>{STYLE}</style>",
        f"<defs>{HATCH}</defs>" if "failed" in picture.used else "",
        f'<rect class="p" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>',
        f'<text class="t" x="{PAD}" y="{PAD + 11}">{escape(scene.title)}</text>',
    ]
    return "\n".join([line for line in head if line] + picture.lines + ["</svg>", ""])


class _Picture:
    def __init__(self, first: float, last: float, left: float, right: float) -> None:
        self.first, self.last, self.left, self.right = first, last, left, right
        self.lines: list[str] = []
        self.used: list[str] = []

    def x(self, at: float) -> float:
        within = min(max(at, self.first), self.last)
        share = (within - self.first) / (self.last - self.first)
        return round(self.left + share * (self.right - self.left), 1)

    def use(self, what: str) -> None:
        if what not in self.used:
            self.used.append(what)

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "") -> None:
        more = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor else "")
        self.lines.append(f'<text x="{_n(x)}" y="{_n(y)}"{more}>{escape(text)}</text>')

    def band(self, what: str, start: float, end: float, top: float, bottom: float) -> None:
        self.use(what)
        x, width = self.x(start), self.x(end) - self.x(start)
        self.lines.append(
            f'<rect class="o" x="{_n(x)}" y="{top}" width="{_n(width)}" height="{bottom - top}"/>'
        )

    def axis(self, tick: float, label: Callable[[float], str], top: float, bottom: float) -> None:
        at = self.first
        grid = ""
        while at <= self.last:
            grid += f"M{_n(self.x(at))} {top - 4}V{bottom}"
            self.text(self.x(at), top - 8, label(at), "q", "middle")
            at += tick
        self.lines.append(f'<path class="g" d="{grid}"/>')

    def row(self, one: Shown, label: str, y: float) -> None:
        self.text(PAD, y + 21, label)
        self.text(WIDTH - PAD, y + 21, outcome_of(one), "q", "end")
        waits_from = one.at
        for attempt in one.attempts:
            self.wait(waits_from, attempt.start, y + 17)
            self.bar(attempt, y + 11)
            waits_from = attempt.end if attempt.end is not None else self.last
        if one.status in WAITS:
            self.wait(waits_from, self.last, y + 17)
        elif not one.attempts and one.ended_at is not None and one.fire.decision in ("run", "queue"):
            self.wait(waits_from, one.ended_at, y + 17)  # canceled or shut out before it started
            if one.status == "skipped":
                self.mark("skip", one.ended_at, y + 17)
        self.mark(str(one.fire.decision), one.at, y + 6)

    def wait(self, start: float, end: float, y: float) -> None:
        if self.x(end) - self.x(start) >= 3:
            self.use("wait")
            self.lines.append(f'<path class="w" d="M{_n(self.x(start))} {_n(y)}H{_n(self.x(end))}"/>')

    def bar(self, attempt: Attempt, y: float) -> None:
        self.use(attempt.how)
        end = attempt.end if attempt.end is not None else self.last
        x = self.x(attempt.start)
        width = max(self.x(end) - x, 2)
        self.lines.append(
            f'<rect class="{BARS[attempt.how]}" x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="12"/>'
        )

    def mark(self, kind: str, at: float, y: float) -> None:
        self.use(kind)
        self.sign(kind, self.x(at), y)

    def sign(self, kind: str, x: float, y: float) -> None:
        places = {"x": x, "y": y, "l": x - 4, "r": x + 4, "t": y - 4, "b": y + 4}
        self.lines.append(MARKS[kind].format(**{key: _n(value) for key, value in places.items()}))

    def legend(self, y: float) -> int:
        x = float(PAD)
        for kind in (kind for kind in MEANINGS if kind in self.used):
            width = 26 + len(MEANINGS[kind]) * LETTER + 14
            if x + width > WIDTH - PAD:
                x, y = float(PAD), y + 20
            if kind in MARKS:
                self.sign(kind, x + 10, y + 6)
            elif kind == "wait":
                self.lines.append(f'<path class="w" d="M{_n(x)} {_n(y + 6)}h20"/>')
            else:
                style = BARS.get(kind, "o")
                self.lines.append(f'<rect class="{style}" x="{_n(x)}" y="{_n(y)}" width="20" height="12"/>')
            self.text(x + 26, y + 10, MEANINGS[kind], "q")
            x += width
        return round(y + 14)


def _n(value: float) -> str:
    """A number without a tail of zeros."""
    return f"{value:.1f}".removesuffix(".0")
