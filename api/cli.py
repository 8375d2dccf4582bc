"""The gateway's own commands: serving, the schema, tenants, keys and the first operator."""

from __future__ import annotations

from api.admin.cli import admin, key, tenant
from api.serving import migrate, serve

__all__ = ["admin", "key", "migrate", "serve", "tenant"]
