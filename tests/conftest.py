"""Fixtures that every test may ask for by name."""

from __future__ import annotations

pytest_plugins = ["databases"]
