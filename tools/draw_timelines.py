"""Draw docs/pictures, and fill in what `explain` says in docs/policies: `python -m tools.draw_timelines`.

Both come from scenes that are played on the real store, so neither can disagree with the code.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.timelines.scenes import SCENES
from tools.timelines.stage import Played, Shown, play
from tools.timelines.svg import draw, label_of, moment_of

DOCS = Path(__file__).parents[1] / "docs"
PICTURES = DOCS / "pictures"
BLOCK = re.compile(r"(<!-- (explained|told|posted): ([^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
HEAD = """
| with | the fire of | `explain` says | rule, or reason of the run |
|---|---|---|---|
"""


async def play_all() -> dict[str, Played]:
    return {played.scene.name: played for played in await play(SCENES)}


def pictures(played: Mapping[str, Played]) -> dict[str, str]:
    """File name → SVG."""
    return {f"{name}.svg": draw(one) for name, one in played.items()}


def page(text: str, played: Mapping[str, Played]) -> str:
    """The page with its marked blocks filled in.

    `explained: scene scene …` becomes a table of the rules that decided in those scenes; `told: scene task
    seconds` what `fusee task explain` prints for one time; `posted: scene` the body of its first alert.
    """

    def fill(block: re.Match[str]) -> str:
        opening, kind, words, closing = block.groups()
        make = {"explained": _table, "told": _printed, "posted": _posted}[kind]
        return opening + make(words.split(), played) + closing

    return BLOCK.sub(fill, text)


def _table(names: Sequence[str], played: Mapping[str, Played]) -> str:
    rows: dict[tuple[str, ...], str] = {}
    for name in names:
        one = played[name]
        for shown in one.shown:
            for verdict, rule in _said(shown):
                # Those that differ in their numbers only are told once.
                key = (verdict, re.sub(r"\d+", "", rule))
                cells = (f"`{one.scene.title}`", label_of(one, shown), verdict, f"`{rule}`")
                rows.setdefault(key, f"| {' | '.join(cells)} |")
        for at, told in one.answers:
            row = f"| `{one.scene.title}` | {moment_of(one, at)} | {told.verdict} | {told.text} |"
            rows[(name, told.verdict, str(at))] = row
    return HEAD + "\n".join(rows.values()) + "\n\n"


def _said(shown: Shown) -> list[tuple[str, str]]:
    """What decided about a fire, and what became of its run later; that nothing was in its way is no news."""
    said: list[tuple[str, str]] = []
    if shown.told.rule is not None and shown.told.rule != "due, and nothing in its way":
        said.append((shown.told.verdict, shown.told.rule))
    if shown.fire.decision in ("run", "queue") and shown.status in ("skipped", "canceled"):
        said.append((f"{shown.told.verdict}, run {shown.status}", shown.reason or ""))
    return said


def _printed(words: Sequence[str], played: Mapping[str, Played]) -> str:
    name, task, at = words
    one = next(s for s in played[name].shown if (s.task, s.at) == (task, float(at)))
    return f"\n```text\n{one.told.text}\nrule: {one.told.rule}\n```\n\n"


def _posted(words: Sequence[str], played: Mapping[str, Played]) -> str:
    (_, body), *_ = played[words[0]].alerts
    return f"\n```json\n{json.dumps(body, indent=2)}\n```\n\n"


def pages() -> list[Path]:
    return [path for path in sorted(DOCS.rglob("*.md")) if BLOCK.search(path.read_text(encoding="utf-8"))]


def main() -> None:
    played = asyncio.run(play_all())
    PICTURES.mkdir(exist_ok=True)
    drawn = pictures(played)
    for stale in set(PICTURES.glob("*.svg")) - {PICTURES / name for name in drawn}:
        stale.unlink()
    for name, svg in drawn.items():
        (PICTURES / name).write_text(svg, encoding="utf-8")
    for path in pages():
        path.write_text(page(path.read_text(encoding="utf-8"), played), encoding="utf-8")


if __name__ == "__main__":
    main()
