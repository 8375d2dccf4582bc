"""Alembic's environment: the tables of all three packages, one line of history.

Run only through `api.migrate`, which hands over an open connection with its transaction, so that
an upgrade is all or nothing on SQLite as on PostgreSQL.
"""

from __future__ import annotations

from alembic import context

import api.limit_tables
import api.tables
import api.webhook_tables
import billing.credit_tables
import billing.invoices.tables  # adds to the metadata of billing.tables
import billing.payments.tables  # likewise
import billing.retention_tables
import billing.review_tables
import billing.tables
import metering.calibration_tables
import metering.ingest_tables
import metering.tables

TARGETS = [metering.tables.metadata, billing.tables.metadata, api.tables.metadata]

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=TARGETS,
    compare_server_default=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
