"""Runs as functions on a Dask cluster. The executor needs the extra `dask`; the payload check does not."""
