"""The files in deploy/, read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

__all__ = ["DEPLOY", "ROOT", "documents", "load_yaml"]

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


class _Strict(yaml.SafeLoader):
    """The parser keeps the last of two equal keys without a word; this one does not."""


def _mapping(loader: _Strict, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key) for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
    twice = {key for key in keys if keys.count(key) > 1}
    if twice:
        raise yaml.YAMLError(f"written twice: {sorted(map(str, twice))} {node.start_mark}")
    loader.flatten_mapping(node)
    return dict(loader.construct_pairs(node, deep=True))


_Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def documents(text: str) -> Iterator[Any]:
    """All documents of a YAML text; a key written twice is an error."""
    yield from (document for document in yaml.load_all(text, Loader=_Strict) if document is not None)


def load_yaml(path: Path) -> Any:
    [document] = documents(path.read_text(encoding="utf-8"))
    return document
