"""The gateway's own commands: tenants, keys and the first operator."""

from __future__ import annotations

from api.admin.cli import admin, key, tenant

__all__ = ["admin", "key", "tenant"]
