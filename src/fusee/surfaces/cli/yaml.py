"""YAML as people mean it: `on` is a word and a time is text, as in YAML 1.2."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from fusee.config.yaml_lines import YamlLines, refuse_duplicates

__all__ = ["read_documents", "write_document"]

_BOOL, _TIME = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp"


class _Loader(yaml.SafeLoader):
    pass


# With those of YAML 1.1, `retry: {on: [lost]}` would have a member named true.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_BOOL, _TIME)]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile("true|True|TRUE|false|False|FALSE"), list("tTfF"))


def read_documents(text: str) -> Iterator[tuple[Any, YamlLines]]:
    """Each document and its lines; raises `yaml.YAMLError` as the parser does."""
    loader = _Loader(text)
    try:
        while loader.check_node():
            root = loader.get_node()
            assert root is not None
            refuse_duplicates(root, [])
            yield loader.construct_document(root), YamlLines(root)
    finally:
        loader.dispose()


def write_document(document: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(document), allow_unicode=True, sort_keys=False, width=100)
