"""Fixtures that every test may ask for by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

# A traceback as structlog draws it by default, with its variables, takes a second.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)

# Triton decides when it is imported whether kernels are interpreted: in tests they always are.
# What is compiled, or runs on a GPU, does so in a process of its own.
os.environ["TRITON_INTERPRET"] = "1"

# How long an example takes says how busy the machine is. `.ci/run` fixes what is drawn as well.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")

pytest_plugins = ["databases"]

LONGEST = Path(__file__).parent / "property"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest goes first, so that no worker is left with it while others are done."""
    items.sort(key=lambda item: item.path.parent != LONGEST)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--crashes",
        type=int,
        help="How often tests/flow/test_rolling_crashes.py kills each gateway; by default a few.",
    )
    parser.addoption(
        "--examples",
        type=int,
        help="How many runs tests/property/test_ledger.py makes on each database.",
    )
