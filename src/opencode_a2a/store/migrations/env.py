"""Alembic's entry: migrations run on the connection they are handed, in its transaction."""

from __future__ import annotations

from alembic import context

from opencode_a2a.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=False,  # the caller's transaction is the one
)
context.run_migrations()
