"""The page of parameters lists every setting there is, each with its true default."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tidy_sources import text

from api.settings import Settings
from engine.config import EngineConfig
from metering.energy import EnergySettings

PAGE = Path("docs/parameters.md")
ROW = re.compile(r"^\| `(\w+)` \| (?:`([^`]*)`|not set) \|", re.MULTILINE)
DOCUMENTED = {name: default or None for name, default in ROW.findall(text(PAGE))}


def shown(value: Any) -> str | None:
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def defaults() -> dict[str, str | None]:
    gateway = {
        f"DFLASH_{name.upper()}": shown(field.default)
        for name, field in Settings.model_fields.items()
        if name not in ("engine", "energy")
    }
    nested = {
        field.name: shown(field.default)
        for struct in (EngineConfig, EnergySettings)
        for field in msgspec.structs.fields(struct)
    }
    return gateway | nested


def test_no_setting_is_missing_from_the_page_and_none_is_invented() -> None:
    assert set(DOCUMENTED) == set(defaults())


@pytest.mark.parametrize(("name", "default"), defaults().items(), ids=list(defaults()))
def test_the_default_is_the_true_one(name: str, default: str | None) -> None:
    assert DOCUMENTED[name] == default
