"""An outside event as a request that has ended: what rating, usage and exports then read.

Its output is not known here, so it has no units, score or bits; its energy is `reported`. It counts
at the time of the event, however late it came.
"""

from __future__ import annotations

import hashlib

from engine.records import DraftCounters
from metering.energy import shown_uj
from metering.events import (
    EndedBy,
    EnergyClass,
    EnergySummary,
    RequestStatus,
    RequestSummary,
)
from metering.ingestion.envelopes import ReportedUsage
from metering.requests import AdmittedRequest

ROUTE = "outside"
FINISH = "reported"
NOTHING_SHA256 = hashlib.sha256(b"").hexdigest()


def request_id(tenant_id: str, source: str, event_id: str) -> str:
    """The request that an event stands for: the same event, the same request."""
    named = hashlib.sha256(f"{tenant_id}\n{source}\n{event_id}".encode()).hexdigest()
    return f"ext_{named[:40]}"


def request_of(
    found: ReportedUsage, *, identity: tuple[str, str, str], key_id: str, at_us: int, tariff: str
) -> AdmittedRequest:
    """The request's row. `identity` is (tenant, source, event id)."""
    return AdmittedRequest(
        id=request_id(*identity),
        tenant_id=identity[0],
        key_id=key_id,
        model=found.model,
        route=ROUTE,
        tariff_version_id=tariff,
        parameters={"source": identity[1], "event_id": identity[2]},
        prompt=None,
        input_tokens=found.input_tokens,
        max_tokens=found.output_tokens,
        max_cost_nano=None,
        end_user=found.end_user,
        tags=found.tags,
        test_mode=False,
        started_at_us=at_us,
        project_id=found.project_id,
    )


def summary_of(found: ReportedUsage, request: AdmittedRequest) -> RequestSummary:
    """What rating reads. A measure that was not reported is missing, not zero."""
    energy_uj = found.energy_uj
    reported = energy_uj is not None
    return RequestSummary(
        request_id=request.id,
        tenant_id=request.tenant_id,
        model=found.model,
        tariff_version_id=request.tariff_version_id,
        status=RequestStatus.COMPLETED,
        finish_reason=FINISH,
        ended_by=EndedBy.MODEL,
        input_tokens=found.input_tokens,
        output_tokens=found.output_tokens,
        unattached_tokens=found.output_tokens,
        blocks=0,
        verified_blocks=0,
        output_sha256=NOTHING_SHA256,
        segmenter="none",
        units=(),
        confidence=None,
        information_ubits=None,
        energy=EnergySummary(
            energy_class=EnergyClass.REPORTED if reported else EnergyClass.UNAVAILABLE,
            energy_uj=energy_uj,
            shown_uj=None if energy_uj is None else shown_uj(energy_uj),
            source="reported" if reported else "none",
            scope="none",
            method="none",
            uncertainty_pct=None,
        ),
        drafting=DraftCounters(),
        review_reason=None,
        started_at_us=request.started_at_us,
        ended_at_us=request.started_at_us,
    )
