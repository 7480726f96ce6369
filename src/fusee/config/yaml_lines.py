"""A YAML text as data, with the line of whatever stands in it."""

from collections.abc import Iterator
from typing import Any

import yaml

__all__ = ["YamlLines", "read_yaml", "refuse_duplicates"]


class YamlLines:
    """Finds lines on demand by walking down the composed nodes."""

    def __init__(self, root: yaml.Node | None) -> None:
        self.root = root

    def __call__(self, path: tuple[str | int, ...]) -> int:
        node, line = self.root, 1
        for name in path:
            found = [entry for entry in _entries(node) if entry[0] == str(name)]
            if not found:
                break
            _, line, node = found[-1]
        return line


def read_yaml(text: str) -> tuple[Any, YamlLines]:
    """The data and its lines; raises `yaml.YAMLError` as the parser does."""
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None, YamlLines(None)
        refuse_duplicates(root, [])
        return loader.construct_document(root), YamlLines(root)
    finally:
        loader.dispose()


def _entries(node: yaml.Node | None) -> Iterator[tuple[str, int, yaml.Node]]:
    """What a node holds: name or index, line, node."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield str(key.value), key.start_mark.line + 1, value
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield str(index), item.start_mark.line + 1, item


def refuse_duplicates(node: yaml.Node, above: list[yaml.Node]) -> None:
    # The parser keeps the last of two equal keys without a word; a person changed the other one.
    if node in above:
        raise yaml.MarkedYAMLError(problem="an anchor that holds itself", problem_mark=node.start_mark)
    seen: set[str] = set()
    for name, line, value in _entries(node):
        if isinstance(node, yaml.MappingNode) and name in seen:
            mark = yaml.Mark("", 0, line - 1, 0, None, 0)
            raise yaml.MarkedYAMLError(problem=f"{name} is written twice; keep one", problem_mark=mark)
        seen.add(name)
        refuse_duplicates(value, [*above, node])
