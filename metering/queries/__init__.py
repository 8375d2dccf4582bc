"""Reads of requests, usage, energy and the engine's health. Nothing here changes anything.

A null `tenant_id` is an operator, who sees every tenant's; a tenant that asks for another's finds
nothing.
"""

from metering.queries.energy import EnergyUse, energy_windows
from metering.queries.engine import EngineHealth, HealthPoint, Totals, engine_health, totals
from metering.queries.requests import (
    BlockRow,
    ListedRequest,
    RequestPosition,
    RequestRow,
    blocks,
    failure,
    request,
    request_list,
    summary,
)
from metering.queries.steps import StepRun, step_runs
from metering.queries.tenants import TenantRow, tenant
from metering.queries.usage import (
    Bucket,
    ClassEnergy,
    ScoreBin,
    UsageBucket,
    confidence_histogram,
    usage,
)

__all__ = [
    "BlockRow",
    "Bucket",
    "ClassEnergy",
    "EnergyUse",
    "EngineHealth",
    "HealthPoint",
    "ListedRequest",
    "RequestPosition",
    "RequestRow",
    "ScoreBin",
    "StepRun",
    "TenantRow",
    "Totals",
    "UsageBucket",
    "blocks",
    "confidence_histogram",
    "energy_windows",
    "engine_health",
    "failure",
    "request",
    "request_list",
    "step_runs",
    "summary",
    "tenant",
    "totals",
    "usage",
]
