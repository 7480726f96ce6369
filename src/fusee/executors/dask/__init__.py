"""Runs as functions on a Dask cluster; needs the extra `dask`."""

from fusee.executors.dask.executor import DaskExecutor
from fusee.executors.dask.payload import check_dask

__all__ = ["DaskExecutor", "check_dask"]
