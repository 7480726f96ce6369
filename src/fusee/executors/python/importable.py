"""Where a function can be imported from, so that another process finds the same function."""

from __future__ import annotations

import importlib
import importlib.util
import runpy
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["ImportPath", "fetch", "import_path_of"]

MAIN_ALIAS = "__fusee_main__"
"""The name under which `__main__` is imported again: code under `if __name__ == "__main__"` is not run."""


@dataclass(frozen=True, slots=True)
class ImportPath:
    """A module, the path to the function inside it, and the file if the module cannot be imported by name."""

    module: str
    qualname: str
    file: str | None
    unwrap: int
    """How many decorators lie between the name and the function; each has the next as `function` or
    `__wrapped__`."""
    main: str | None = None
    """The argument of `python -m`, for a function of `__main__`."""


def import_path_of(function: Callable[..., Any]) -> ImportPath:
    """Return where `function` is found; raises a ValueError that says what to do when it cannot be."""
    module = getattr(function, "__module__", None)
    qualname = getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str):
        raise ValueError(f"{function!r:.200} has no name to import it by: wrap it in a top-level `def`")
    if "<" in qualname:
        what = "a lambda" if qualname.endswith("<lambda>") else "defined inside a function"
        raise ValueError(
            f"{module}.{qualname} is {what} and another process cannot import it:"
            " move it to the top level of its module, or use isolation='thread'"
        )
    home = sys.modules.get(module)
    file = getattr(home, "__file__", None)
    main = None
    if module == "__main__":
        spec = getattr(home, "__spec__", None)
        main = getattr(spec, "name", None)
        if main is None and file is None:
            raise ValueError(
                f"{qualname} was typed in at a prompt and another process cannot import it:"
                " put it in a file, or use isolation='thread'"
            )
    return ImportPath(module, qualname, file, _depth(home, qualname, function), main)


def fetch(address: ImportPath) -> Callable[..., Any]:
    """Return the function at `address`; raises what importing it raises."""
    found: Any = _walk(_module(address), address.qualname)
    for _ in range(address.unwrap):
        found = _inner(found)
    if not callable(found):
        raise ImportError(f"{address.module}.{address.qualname} is not a function here")
    return found  # type: ignore[no-any-return]


def _depth(home: types.ModuleType | None, qualname: str, function: Callable[..., Any]) -> int:
    """Return how many decorators lie between `function` and its own name."""
    try:
        found: Any = _walk(home, qualname)
    except AttributeError:
        # It is being decorated right now: its name is not bound yet, and will lead to it.
        return 0
    for depth in range(20):
        # A method of a class is created anew at every access: equal, not identical.
        if found is function or found == function:
            return depth
        found = _inner(found)
        if found is None:
            break
    raise ValueError(
        f"{function.__module__}.{qualname} leads to something else than this function, which another process"
        " would call instead: give the function a name of its own, or use isolation='thread'"
    )


def _inner(found: Any) -> Any:
    return getattr(found, "function", None) or getattr(found, "__wrapped__", None)


def _walk(found: Any, qualname: str) -> Any:
    for name in qualname.split("."):
        found = getattr(found, name)
    return found


def _module(address: ImportPath) -> types.ModuleType:
    if address.module == "__main__":
        return _main_again(address)
    try:
        return importlib.import_module(address.module)
    except ModuleNotFoundError as error:
        # Only when this module itself cannot be imported by name, not when one that it imports is missing.
        missing = error.name or ""
        ours = address.module == missing or address.module.startswith(f"{missing}.")
        if address.file is None or not ours:
            raise
    return _from_file(address.module, address.file)


def _from_file(name: str, file: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {name} from {file}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _main_again(address: ImportPath) -> types.ModuleType:
    """Import the parent's main module under another name, as multiprocessing does."""
    if (known := sys.modules.get(MAIN_ALIAS)) is not None:
        return known
    module = types.ModuleType(MAIN_ALIAS)
    if address.main is not None:
        content = runpy.run_module(address.main, run_name=MAIN_ALIAS, alter_sys=True)
    else:
        assert address.file is not None
        content = runpy.run_path(address.file, run_name=MAIN_ALIAS)
    module.__dict__.update(content)
    sys.modules["__main__"] = sys.modules[MAIN_ALIAS] = module
    return module
