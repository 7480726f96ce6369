"""Finding the user's application, `--app module:app`, and opening the database for one command."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fusee.errors import StoreUnavailable
from fusee.surfaces.cli.exits import Exit, Failure
from fusee.surfaces.cli.options import Shared

if TYPE_CHECKING:
    from fusee.app.fusee import Fusee
    from fusee.config import Config

__all__ = ["import_app", "naming", "opened", "sqlite_file"]


@contextmanager
def naming(config: Config) -> Iterator[None]:
    """Names the database that is not available."""
    try:
        yield
    except StoreUnavailable as error:
        raise Failure(f"{config.database.safe_url}: {error}", Exit.UNAVAILABLE) from error


@asynccontextmanager
async def opened(shared: Shared, *, create: bool = False) -> AsyncIterator[Fusee]:
    """The platform as the configuration says, for a client: it never changes an existing schema.

    With `create`, a database without a schema gets one; without, a mistyped URL makes no empty file.
    """
    from fusee.app.fusee import Fusee

    config = shared.load({"database": {"migrate": False}})
    file = sqlite_file(config)
    if file is not None and not file.exists() and not create:
        raise Failure(
            f"there is no database at {file}: `fusee up` or `fusee db upgrade` makes it;"
            " --database names another",
            Exit.UNAVAILABLE,
        )
    with naming(config):
        async with Fusee(config=config) as app:
            current, wanted = await app.store.revision()
            if current is None:
                if not create:
                    raise Failure(
                        f"{config.database.safe_url} has no Fusee schema: run `fusee db upgrade`",
                        Exit.UNAVAILABLE,
                    )
                await app.store.upgrade()
            elif current < wanted:
                raise Failure(
                    f"the schema is at revision {current}, this version wants {wanted}:"
                    " run `fusee db upgrade`",
                    Exit.UNAVAILABLE,
                )
            yield app


def sqlite_file(config: Config) -> Path | None:
    """The file behind a SQLite URL."""
    scheme, _, rest = config.database.url.partition("://")
    if not scheme.startswith("sqlite") or rest in ("", "/", "/:memory:"):
        return None
    return Path(rest[1:])


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
