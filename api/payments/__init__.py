"""Payments over HTTP: top-ups for tenants, webhooks from the provider, and the worker between."""
