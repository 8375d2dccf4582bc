"""The gateway's settings: the one module that reads the environment.

Every field is `DFLASH_<NAME>`; nested ones are `DFLASH_ENGINE__THREADS`, `DFLASH_ENERGY__...`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from engine.config import SHIPPED_PROFILE, EngineConfig
from engine.errors import InvalidConfig
from metering.energy import EnergySettings

StructT = TypeVar("StructT", bound=msgspec.Struct)

ONLY_REPLICA = "main"
REPLICA_NAME = re.compile(r"[a-z0-9_-]{1,40}")


class InvalidSettings(Exception):
    """A setting that is unknown or out of range; the message names it."""


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """How one replica computes, and how it is metered."""

    engine: EngineConfig
    energy: EnergySettings


class Settings(BaseSettings):
    """Where the gateway keeps its state, what it listens on, and the limits it holds to."""

    model_config = SettingsConfigDict(
        env_prefix="DFLASH_", env_nested_delimiter="__", extra="forbid", frozen=True
    )

    home: Path = Path("var")
    database_url: str | None = None
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    model: str = "smollm2-135m-instruct"
    profile: str = SHIPPED_PROFILE
    engine: dict[str, Any] = {}
    energy: dict[str, Any] = {}
    replicas: dict[str, dict[str, dict[str, Any]]] = {}

    requests_per_minute: int = Field(default=600, ge=1)
    body_bytes_max: int = Field(default=1 << 20, ge=1024)
    body_wait_s: float = Field(default=30.0, gt=0)
    max_tokens_default: int = Field(default=256, ge=1)
    hold_lifetime_s: int = Field(default=120, ge=10)
    sweep_interval_s: float = Field(default=20.0, gt=0)
    audit_sample_rate: float = Field(default=0.01, ge=0, le=1)
    second_opinion_rate: float = Field(default=0.05, ge=0, le=1)
    review_sla_hours: int = Field(default=24, ge=1)
    keepalive_s: float = Field(default=15.0, gt=0)
    drain_s: int = Field(default=20, ge=0)
    secure_cookies: bool = False
    public_url: str = "http://127.0.0.1:8000"
    stripe_api_key: str | None = None
    stripe_webhook_secrets: str | None = None
    stripe_api_base: str | None = None
    webhooks_allow_private: bool = False
    log_level: str = "info"

    @classmethod
    def read(cls, **given: Any) -> Settings:
        """The settings from the environment, with what is `given` above it.

        Raises InvalidSettings for a `DFLASH_` variable that is none, so that a misspelt one is
        never silently without effect.
        """
        known = {f"DFLASH_{name.upper()}" for name in cls.model_fields}
        for name in sorted(os.environ):
            if name.startswith("DFLASH_") and name.partition("__")[0] not in known:
                raise InvalidSettings(f"{name} is no setting; see docs/parameters.md")
        return cls(**{name: value for name, value in given.items() if value is not None})

    @property
    def resolved_database_url(self) -> str:
        """The database's URL: as given, or an embedded SQLite file under `home`."""
        return self.database_url or f"sqlite:///{(self.home / 'gateway.db').resolve()}"

    def environment(self) -> dict[str, str]:
        """The environment of another `dflash` process of this installation.

        The database's URL goes this way and not as an argument: it may hold a password, and
        arguments are public.
        """
        return {**os.environ, "DFLASH_DATABASE_URL": self.resolved_database_url}

    def engine_config(self) -> EngineConfig:
        """The profile's configuration with the engine's settings above it.

        Raises InvalidSettings for an unknown or ill-typed name.
        """
        return self._engine_config(self.engine)

    def energy_settings(self) -> EnergySettings:
        """The meter's configuration; raises InvalidSettings for an unknown or ill-typed name."""
        return _struct(EnergySettings, self.energy, "energy")

    def replica_settings(self) -> dict[str, ReplicaSettings]:
        """What runs the model, by name: one engine, or one for each of `replicas`.

        What a replica names is above the settings of all. Raises InvalidSettings.
        """
        found = {}
        for name, given in (self.replicas or {ONLY_REPLICA: {}}).items():
            if not REPLICA_NAME.fullmatch(name):
                raise InvalidSettings(f"replica {name!r}: a name has 1 to 40 of a-z, 0-9, _ and -")
            unknown = sorted(set(given) - {"engine", "energy"})
            if unknown:
                raise InvalidSettings(f"replica {name}: unknown setting: {', '.join(unknown)}")
            found[name] = ReplicaSettings(
                self._engine_config(self.engine | given.get("engine", {})),
                _struct(EnergySettings, self.energy | given.get("energy", {}), "energy"),
            )
        return found

    def _engine_config(self, named: dict[str, Any]) -> EngineConfig:
        given = _struct(EngineConfig, named, "engine")
        try:
            return EngineConfig.of(self.profile, **{name: getattr(given, name) for name in named})
        except InvalidConfig as error:
            raise InvalidSettings(str(error)) from None


def _struct(kind: type[StructT], values: dict[str, Any], section: str) -> StructT:
    unknown = sorted(set(values) - {field.name for field in msgspec.structs.fields(kind)})
    if unknown:
        raise InvalidSettings(f"unknown {section} setting: {', '.join(unknown)}")
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidSettings(f"{section}: {error}") from None
