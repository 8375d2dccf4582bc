"""Fixtures that every test may ask for by name."""

from __future__ import annotations

import os

# Triton decides when it is imported whether kernels are interpreted: in tests they always are.
# What is compiled, or runs on a GPU, does so in a process of its own.
os.environ["TRITON_INTERPRET"] = "1"

pytest_plugins = ["databases"]
