"""Fixtures that every test may ask for by name."""

from __future__ import annotations

import os

import pytest

# Triton decides when it is imported whether kernels are interpreted: in tests they always are.
# What is compiled, or runs on a GPU, does so in a process of its own.
os.environ["TRITON_INTERPRET"] = "1"

pytest_plugins = ["databases"]


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
