"""Write docs/configuration.md from the configuration's own descriptions."""

from pathlib import Path

from fusee.config import reference

if __name__ == "__main__":
    target = Path(__file__).parents[1] / "docs" / "configuration.md"
    target.write_text(reference(), encoding="utf-8")
