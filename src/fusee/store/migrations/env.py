"""Alembic's entry: always on a connection that `fusee.store.migrate` holds."""

from alembic import context

from fusee.store import task_schema as _  # noqa: F401
from fusee.store.migrate import VERSION_TABLE
from fusee.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
with context.begin_transaction():
    context.run_migrations()
