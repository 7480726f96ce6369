"""Settings taken one by one from what was written, each remembering where it stood."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fusee.config.files import Source
from fusee.config.keys import ALIASES, KeyPath, children, dotted, groups, keys
from fusee.config.problems import Place, Problems, nearest

__all__ = ["Setting", "settings"]


@dataclass(frozen=True)
class Setting:
    """A value for one key, or for one entry of a table such as worker.labels."""

    written: KeyPath
    value: Any
    source: Source

    def place(self, *below: str | int) -> Place:
        return self.source.place((*self.written, *below))


def settings(source: Source, problems: Problems) -> dict[KeyPath, Setting]:
    """Every setting of a source by the key it sets; what is no key becomes a problem."""
    found: dict[KeyPath, Setting] = {}
    _gather((), source.data, source, found, problems)
    return found


def _gather(
    group: KeyPath, data: Mapping[Any, Any], source: Source, found: dict[KeyPath, Setting], problems: Problems
) -> None:
    for name, value in data.items():
        written = (*group, str(name))
        path = ALIASES.get(written, written)
        place = source.place(written)
        if path in keys() and keys()[path].is_table:
            if isinstance(value, Mapping):
                for entry, text in value.items():
                    found[*path, str(entry)] = Setting((*written, str(entry)), text, source)
            else:
                problems.add(place, f"{dotted(written)} {place} must be a table of names and values")
        elif path in keys():
            if path in found:
                both = f"{dotted(found[path].written)} and {dotted(written)}"
                problems.add(place, f"{both} {place} set the same thing; keep {dotted(path)}")
            found[path] = Setting(written, value, source)
        elif written not in groups():
            problems.add(place, f"unknown key {dotted(written)} {place}; {_advise(written)}")
        elif isinstance(value, Mapping):
            _gather(written, value, source, found, problems)
        elif value is not None:
            # An empty `worker:` in YAML is a section with nothing in it.
            names = ", ".join(children(written))
            problems.add(place, f"{dotted(written)} {place} must be a section, with any of {names} inside")


def _advise(written: KeyPath) -> str:
    group, name = written[:-1], written[-1]
    same_name = [path for path in keys() if path[-1] == name]
    if len(same_name) == 1:
        return f"did you mean {dotted(same_name[0])}?"
    if near := nearest(name, children(group)):
        return f"did you mean {near}?"
    elsewhere = (path for path in (*keys(), *groups()) if len(path) == len(written) and path[:-1] != group)
    if near := nearest(dotted(written), map(dotted, elsewhere)):
        return f"did you mean {near}?"
    where = dotted(group) if group else "the top level"
    return f"the keys of {where} are {', '.join(children(group))}"
