"""Reads of requests, usage, energy and the engine's health. Nothing here changes anything.

A null `tenant_id` is an operator, who sees every tenant's; a tenant that asks for another's finds
nothing.
"""

from metering.queries.energy import EnergyUse, RanOn, energy_windows, ran_on
from metering.queries.engine import EngineHealth, HealthPoint, Totals, engine_health, totals
from metering.queries.requests import (
    RequestRow,
    failure,
    request,
    summary,
)
from metering.queries.steps import StepRun, step_runs
from metering.queries.tenants import TenantRow, tenant
from metering.queries.trace import BlockEnergy, RequestTrace, TraceBlock, TraceToken, trace
from metering.queries.usage import (
    Bucket,
    ClassEnergy,
    ScoreBin,
    UsageBucket,
    confidence_histogram,
    usage,
)

__all__ = [
    "BlockEnergy",
    "Bucket",
    "ClassEnergy",
    "EnergyUse",
    "EngineHealth",
    "HealthPoint",
    "RanOn",
    "RequestRow",
    "RequestTrace",
    "ScoreBin",
    "StepRun",
    "TenantRow",
    "Totals",
    "TraceBlock",
    "TraceToken",
    "UsageBucket",
    "confidence_histogram",
    "energy_windows",
    "engine_health",
    "failure",
    "ran_on",
    "request",
    "step_runs",
    "summary",
    "tenant",
    "totals",
    "trace",
    "usage",
]
