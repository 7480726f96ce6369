"""The PostgreSQL the peers run on: the repository's own private server (`tools/servers.py`)."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

__all__ = ["postgres"]


def postgres() -> Any:
    """A context manager with `.url` and `.create_database()`: fsync and synchronous_commit on, loopback."""
    name = "fusee_tools_servers"
    if name not in sys.modules:
        path = Path(__file__).parents[2] / "tools" / "servers.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec and spec.loader, f"{path} is missing"
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name].postgres()
