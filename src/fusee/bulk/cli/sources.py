"""What people type for the items of a bulk job."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click

from fusee.surfaces.cli.inputs import json_or_text, text_of

__all__ = ["rate_of", "source_from"]

_RANGE = re.compile(r"([0-9][0-9_]*)\.\.([0-9][0-9_]*)")


def source_from(text: str) -> Any:
    """`1000000`, `10..20`, a JSON list or object, `@FILE` or `-` with one, a URL, or the path of a file."""
    if text.replace("_", "").isdecimal():
        return int(text)
    if found := _RANGE.fullmatch(text):
        return {"kind": "range", "start": int(found[1]), "stop": int(found[2])}
    if text.startswith(("http://", "https://")):
        return {"kind": "url", "url": text}
    if text.startswith(("{", "[", "@")) or text == "-":
        try:
            return json.loads(text_of(text, "--source"))
        except ValueError as error:
            raise click.BadParameter(f"not JSON: {error}", param_hint="--source") from None
    path = Path(text)
    if not path.is_file():
        raise click.BadParameter(
            f"there is no file {text}; write a number, FROM..TO, a file, a URL or JSON", param_hint="--source"
        )
    # Workers have another folder: they are told the whole path.
    return {"kind": "file", "path": str(path.resolve())}


def rate_of(text: str) -> float | str:
    """The rate of a bulk job: items a second, `unlimited` or `hold`."""
    from fusee.bulk.model.pacing import rate_from, rate_shown

    try:
        return rate_shown(rate_from(json_or_text(text)))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
