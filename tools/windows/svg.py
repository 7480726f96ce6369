"""Draws windows: a row for each moment, a cell for each item; and paces: a mark for each start.

A panel with its own background, so that it reads on a light page and on a dark one; states differ by shape
and by word, not by colour alone.
"""

from __future__ import annotations

from xml.sax.saxutils import escape

from fusee.bulk.model.pacing import MICROSECONDS
from tools.windows.scenes import Moment, Paces, Scene

__all__ = ["draw", "draw_paces"]

WIDTH = 760
PAD = 14
ROW = 58
CELL = 20
LETTER = 6.5

STYLE = """
text{font:12px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#1f2328}
.q{fill:#59636e}.t{font-weight:600;font-size:13px}.n{font-size:9px;fill:#59636e;text-anchor:middle}
.p{fill:#fff;stroke:#d0d7de}.c{fill:none;stroke:#c3cad2}.d{fill:#2f76b8;stroke:#2f76b8}
.u{fill:#cfe2f5;stroke:#2f76b8;stroke-width:1.5}.r{fill:url(#h);stroke:#b3470c}
.k{stroke:#1f2328;stroke-width:2}.m{fill:#1f2328}.b{fill:none;stroke:#1f2328;stroke-width:1.2}
.hb{fill:#fbd9c3}.hl{stroke:#b3470c;stroke-width:2.5}.s2{fill:#b3470c}.g{stroke:#d8dee4}
@media (prefers-color-scheme:dark){
text{fill:#e6edf3}.q,.n{fill:#9aa4ae}.p{fill:#0d1117;stroke:#3d444d}.c{stroke:#3d444d}
.d{fill:#5aa2e0;stroke:#5aa2e0}.u{fill:#16324d;stroke:#5aa2e0}.k,.b{stroke:#e6edf3}.m{fill:#e6edf3}
.hb{fill:#4a2a12}.hl{stroke:#f0883e}.r{stroke:#f0883e}.s2{fill:#f0883e}.g{stroke:#2a3038}}
"""
HATCH = (
    '<pattern id="h" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect class="hb" width="6" height="6"/><path class="hl" d="M0 0V6"/></pattern>'
)
MEANINGS = {"d": "done", "u": "under way", "r": "replayed", "w": "not started"}


def draw(scene: Scene) -> str:
    cell = min(CELL, (WIDTH - 2 * PAD) / scene.items)
    parts: list[str] = []
    top = PAD + 44
    for number, moment in enumerate(scene.moments):
        parts += _moment(moment, cell, top + number * ROW)
    height = top + len(scene.moments) * ROW + 30
    used = {letter for moment in scene.moments for letter in moment.cells}
    parts += _legend(used, height - 16)
    return _whole(scene.title, scene.story, height, parts)


def _moment(moment: Moment, cell: float, top: float) -> list[str]:
    parts = [f'<text class="q" x="{PAD}" y="{_n(top + 2)}">{escape(moment.caption)}</text>']
    y = top + 14
    for place, letter in enumerate(moment.cells):
        index = moment.first + place
        x = PAD + index * cell
        kind = {"w": "c"}.get(letter, letter)
        parts.append(
            f'<rect class="{kind}" x="{_n(x + 1)}" y="{_n(y)}" width="{_n(cell - 2)}" height="14" rx="2"/>'
        )
        if index % 4 == 0:
            parts.append(f'<text class="n" x="{_n(x + cell / 2)}" y="{_n(y + 24)}">{index}</text>')
    mark = PAD + moment.watermark * cell
    parts.append(f'<path class="m" d="M{_n(mark - 4)} {_n(y - 6)}h8l-4 5z"/>')
    parts.append(f'<path class="k" d="M{_n(mark)} {_n(y - 3)}V{_n(y + 16)}"/>')
    if moment.limit > moment.watermark:
        end = PAD + moment.limit * cell
        parts.append(
            f'<path class="b" d="M{_n(mark + 2)} {_n(y - 3)}H{_n(end - 1)}M{_n(end - 1)} {_n(y - 6)}v6"/>'
        )
    return parts


def _legend(used: set[str], y: float) -> list[str]:
    parts, x = [], float(PAD)
    for letter, word in MEANINGS.items():
        if letter in used:
            kind = {"w": "c"}.get(letter, letter)
            parts.append(f'<rect class="{kind}" x="{_n(x)}" y="{_n(y - 10)}" width="12" height="12" rx="2"/>')
            parts.append(f'<text class="q" x="{_n(x + 17)}" y="{_n(y)}">{word}</text>')
            x += 17 + len(word) * LETTER + 22
    parts.append(f'<path class="m" d="M{_n(x)} {_n(y - 9)}h8l-4 5z"/>')
    parts.append(f'<text class="q" x="{_n(x + 13)}" y="{_n(y)}">watermark; the line: the window</text>')
    return parts


def draw_paces(paces: Paces) -> str:
    left, right = PAD + 70.0, WIDTH - PAD
    scale = (right - left) / paces.until
    workers = list(dict.fromkeys(one.worker for one in paces.stretches))
    top, parts = PAD + 56.0, []
    bottom = top + 34 * len(workers)
    for second in range(paces.until // MICROSECONDS + 1):
        x = left + second * MICROSECONDS * scale
        parts.append(f'<path class="g" d="M{_n(x)} {_n(top - 12)}V{_n(bottom)}"/>')
        anchor = min(x, right - 18)
        parts.append(f'<text class="q" x="{_n(anchor + 2)}" y="{_n(top - 14)}">{second} s</text>')
    for row, worker in enumerate(workers):
        y = top + row * 34
        shape = "m" if row == 0 else "s2"
        parts.append(f'<text class="q" x="{PAD}" y="{_n(y + 14)}">{worker}</text>')
        for one in paces.stretches:
            if one.worker != worker:
                continue
            parts.append(_box(left + one.begin * scale, y, (one.end - one.begin) * scale))
            for at in one.starts:
                x = left + at * scale
                parts.append(f'<circle class="{shape}" cx="{_n(x + 5)}" cy="{_n(y + 10)}" r="3"/>')
    return _whole(paces.title, paces.story, bottom + 14, parts)


def _box(x: float, y: float, width: float) -> str:
    return f'<rect class="c" x="{_n(x + 1)}" y="{_n(y)}" width="{_n(width - 2)}" height="20" rx="3"/>'


def _whole(title: str, story: str, height: float, parts: list[str]) -> str:
    h = _n(height)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {h}" width="{WIDTH}" height="{h}"'
            ' role="img" aria-labelledby="t d">',
            f'<title id="t">{escape(title)}</title>',
            f'<desc id="d">{escape(story)}</desc>',
            f"<style>{STYLE}</style>",
            f"<defs>{HATCH}</defs>",
            f'<rect class="p" x=".5" y=".5" width="{WIDTH - 1}" height="{_n(height - 1)}" rx="6"/>',
            f'<text class="t" x="{PAD}" y="{PAD + 10}">{escape(title)}</text>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
