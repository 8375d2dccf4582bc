"""A tiny random model served by the real gateway process, with tenants that have credit.

One gateway serves all tests that leave it as they found it, each with a tenant of its own; what
kills or configures a gateway takes a home of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway_process import Gateway, GatewayHome, Tenant, make_tenant
from tiny_models import TinyShape, write_tiny_dfm


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = TinyShape(context_length=2048)  # room for requests that outlast a test's patience
    return write_tiny_dfm(tmp_path_factory.mktemp("model") / "tiny.dfm", shape)


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Gateway]:
    home = GatewayHome.create(tmp_path_factory.mktemp("shared") / "home", tiny_model)
    with home.running() as running:
        yield running


@pytest.fixture
def tenant(gateway: Gateway) -> Tenant:
    return make_tenant(gateway.home)


@pytest.fixture
def own_home(tmp_path: Path, tiny_model: Path) -> GatewayHome:
    return GatewayHome.create(tmp_path / "home", tiny_model)
