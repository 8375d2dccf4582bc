"""Invoices over HTTP: to read for tenants, to close and to settle for the operator."""
