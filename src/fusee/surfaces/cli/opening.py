"""Opening the database for one command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fusee.errors import StoreUnavailable
from fusee.surfaces.cli.exits import Exit, Failure
from fusee.surfaces.cli.options import Shared

if TYPE_CHECKING:
    from fusee.app.fusee import Fusee
    from fusee.config import Config

__all__ = ["drive", "naming", "opened", "sqlite_file"]

T = TypeVar("T")


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's asynchronous part."""
    return asyncio.run(work)


@contextmanager
def naming(config: Config) -> Iterator[None]:
    """Says which database did not answer."""
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
