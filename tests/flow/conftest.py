"""A tiny random model served by the real gateway process, with a tenant that has credit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway_process import Gateway, GatewayHome, Tenant, make_tenant
from tiny_models import write_tiny_dfm


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_dfm(tmp_path_factory.mktemp("model") / "tiny.dfm")


@pytest.fixture
def home(tmp_path: Path, tiny_model: Path) -> GatewayHome:
    home = GatewayHome(tmp_path / "home", tiny_model)
    home.path.mkdir()
    home.dflash("migrate")
    return home


@pytest.fixture
def tenant(home: GatewayHome) -> Tenant:
    return make_tenant(home)


@pytest.fixture
def gateway(home: GatewayHome, tenant: Tenant) -> Iterator[Gateway]:
    with home.running() as running:
        yield running


@pytest.fixture(scope="module")
def shared_gateway(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Gateway]:
    """One gateway for tests that leave nothing behind."""
    home = GatewayHome(tmp_path_factory.mktemp("shared") / "home", tiny_model)
    home.path.mkdir()
    home.dflash("migrate")
    with home.running() as running:
        yield running


@pytest.fixture(scope="module")
def shared_tenant(shared_gateway: Gateway) -> Tenant:
    return make_tenant(shared_gateway.home)
