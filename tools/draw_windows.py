"""Draw docs/pictures/bulk from the real window and paces of a rate: `python -m tools.draw_windows`."""

from __future__ import annotations

from pathlib import Path

from tools.windows.scenes import PACES, SCENES
from tools.windows.svg import draw, draw_paces

PICTURES = Path(__file__).parents[1] / "docs" / "pictures" / "bulk"


def pictures() -> dict[str, str]:
    """File name → SVG."""
    drawn = {f"{scene.name}.svg": draw(scene) for scene in SCENES}
    return drawn | {f"{paces.name}.svg": draw_paces(paces) for paces in PACES}


def main() -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    drawn = pictures()
    for stale in set(PICTURES.glob("*.svg")) - {PICTURES / name for name in drawn}:
        stale.unlink()
    for name, svg in drawn.items():
        (PICTURES / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
