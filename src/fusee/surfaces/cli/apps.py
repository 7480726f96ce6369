"""Finding the user's application: `--app module:app`."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fusee.surfaces.cli.exits import Failure

if TYPE_CHECKING:
    from fusee.app.fusee import Fusee

__all__ = ["import_app"]


def import_app(name: str) -> Fusee:
    """The `Fusee` that `module:attribute` names; `module` alone means `module:app`."""
    from fusee.app.fusee import Fusee

    module_name, colon, path = name.partition(":")
    path = path if colon else "app"
    parts = [*module_name.split("."), *path.split(".")]
    if not all(part.isidentifier() for part in parts):
        slip = module_name.removesuffix(".py").replace("/", ".").strip(".")
        hint = f"; did you mean {slip}:{path}?" if slip.replace(".", "a").isidentifier() else ""
        raise Failure(f"--app {name}: write a module and a name in it, such as myproject.jobs:app{hint}")
    found: Any = _import(module_name, name)
    for at, part in enumerate(path.split(".")):
        if not hasattr(found, part):
            raise Failure(f"--app {name}: {module_name} has no {part!r}{_advice(found, module_name, at)}")
        found = getattr(found, part)
    if not isinstance(found, Fusee):
        advice = _advice(sys.modules[module_name], module_name, 0)
        raise Failure(f"--app {name}: that is a {type(found).__name__}, not a Fusee{advice}")
    return found


def _import(module: str, name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module == missing or module.startswith(f"{missing}."):
            advice = "start from the folder that holds it, or install it"
            if module.endswith(".py"):
                advice = f"a module is named without .py: --app {module.removesuffix('.py')}:app"
            raise Failure(
                f"--app {name}: no module {missing!r} in {here} or among the installed packages: {advice}"
            ) from error
        raise Failure(f"--app {name}: {module} imports {missing!r}, which is not installed") from error
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        if isinstance(error, SyntaxError) and error.filename:
            where = f" at {error.filename}:{error.lineno}"
        raise Failure(
            f"--app {name}: importing {module} failed: {type(error).__name__}: {error}{where}"
        ) from error


def _advice(module: Any, module_name: str, depth: int) -> str:
    from fusee.app.fusee import Fusee

    if depth:
        return ""
    names = [name for name, value in vars(module).items() if isinstance(value, Fusee)]
    if names:
        return f"; it has {module_name}:{names[0]}"
    return "; make one there: app = Fusee()"
