"""The version, as installed."""

from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__"]

try:
    __version__ = version("fusee")
except PackageNotFoundError:  # run from a source tree that was not installed
    __version__ = "0"
