"""What fitting needs beyond a gateway's own dependencies."""

from __future__ import annotations

import importlib
from types import ModuleType

from metering.errors import NotCalibrated


def extra(name: str) -> ModuleType:
    """A module of the extra `calibration`. Raises NotCalibrated where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotCalibrated(
            f"{error}: `pip install 'dflash-gateway[calibration]'` brings what fitting needs"
        ) from error
