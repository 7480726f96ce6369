"""Targets from a file: lines of JSON, CSV, or one JSON or YAML document; read as they are needed."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import click

from fusee.surfaces.cli.inputs import json_or_text

__all__ = ["targets_in"]


def targets_in(file: str) -> Iterator[Mapping[str, Any]]:
    """`-` is standard input, as lines of JSON."""
    if file == "-":
        yield from _lines(sys.stdin, "standard input")
        return
    path = Path(file)
    if not path.is_file():
        raise click.BadParameter(f"there is no file {file}", param_hint="--targets")
    with path.open(encoding="utf-8-sig", newline="") as text:
        match path.suffix.lower():
            case ".csv":
                yield from _rows(text)
            case ".json":
                yield from _array(json.load(text), file)
            case ".yaml" | ".yml":
                import yaml

                yield from _array(yaml.safe_load(text), file)
            case _:
                yield from _lines(text, file)


def _lines(text: IO[str], where: str) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(text, 1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise click.UsageError(f"{where}, line {number}: not JSON: {error}") from None


def _array(value: Any, where: str) -> Iterator[Mapping[str, Any]]:
    targets = value.get("targets") if isinstance(value, dict) else value
    if not isinstance(targets, list):
        raise click.UsageError(f"{where}: targets must be a list")
    yield from targets


def _rows(text: IO[str]) -> Iterator[Mapping[str, Any]]:
    """Columns target_id, target_name, target_env, before.x, after.y; JSON values are read as such."""
    for row in csv.DictReader(text):
        target: dict[str, Any] = {}
        for column, value in row.items():
            side, _, name = str(column).partition(".")
            if name and side in ("before", "after"):
                target.setdefault(side, {})[name] = json_or_text(value or "")
            else:
                target[str(column)] = value
        yield target
