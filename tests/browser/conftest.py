"""Fixtures of the browser tests: one Chromium, and the pages over a settled world."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser_chromium import Tab, chromium, open_tab
from browser_pages import World, serving
from playwright.sync_api import Browser
from sqlalchemy import Engine

__all__ = ["chromium"]


@pytest.fixture
def world(sqlite_database: Engine, tmp_path: Path) -> World:
    return World(sqlite_database, tmp_path)


@pytest.fixture
def base_url(world: World) -> Iterator[str]:
    with serving(world.app()) as url:
        yield url


@pytest.fixture
def tab(chromium: Browser) -> Iterator[Tab]:
    with open_tab(chromium) as opened:
        yield opened
