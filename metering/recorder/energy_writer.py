"""Settled energy on its way into the database: windows of the meter, and requests' shares."""

from __future__ import annotations

from sqlalchemy import Connection, insert

from metering import bodies, clock, event_log
from metering.bodies import EnergyBody
from metering.energy import Policy, Provenance, Share, Window
from metering.energy.windows import Unwritten
from metering.prepared import Prepared
from metering.recorder.live import LiveRequest
from metering.tables import meter_windows


def energy_bodies(
    live: LiveRequest, share: Share, provenance: Provenance, policy: Policy
) -> list[EnergyBody]:
    """What a share states: the energy that is known and, apart from it, that some never will be."""
    amounts: list[int | None] = []
    if share.energy_uj or not share.is_partial:
        amounts.append(share.energy_uj)
    if share.is_partial:
        amounts.append(None)
    first = live.meter.energy_events
    return [
        EnergyBody(
            request_id=live.admitted.id,
            index=first + place,
            through_block=share.through_block,
            energy_uj=amount,
            energy_class=provenance.energy_class,
            source=provenance.source,
            scope=provenance.scope,
            method=policy.method,
            uncertainty_pct=provenance.uncertainty_pct,
            device="+".join(provenance.devices),
            epoch=share.epoch,
            start_ns=share.start_ns,
            end_ns=share.end_ns,
            weights=policy.weights,
            update_period_us=provenance.update_period_us,
        )
        for place, amount in enumerate(amounts)
    ]


def write(
    connection: Connection,
    unwritten: Unwritten,
    stated: list[tuple[LiveRequest, EnergyBody]],
    provenance: Provenance,
) -> None:
    """Write windows and statements within the caller's transaction: both, or neither."""
    now_us = clock.now_us()
    event_log.append(
        connection,
        [bodies.state(body, live.admitted.tenant_id, now_us) for live, body in stated],
    )
    if unwritten.windows:
        _WINDOW.run_each(
            connection, [_row(window, provenance, now_us) for window in unwritten.windows]
        )


_WINDOW = Prepared(insert(meter_windows))


def _row(window: Window, provenance: Provenance, now_us: int) -> dict[str, str | int]:
    return {
        "device": provenance.device,
        "epoch": window.epoch,
        "source": provenance.source,
        "energy_class": provenance.energy_class.value,
        "start_ns": window.start_ns,
        "end_ns": window.end_ns,
        "recorded_at_us": now_us,
        "meter_uj": window.meter_uj,
        "requests_uj": window.requests_uj,
        "idle_uj": window.idle_uj,
        "overhead_uj": window.overhead_uj,
        "external_uj": window.external_uj,
        "unattributed_uj": window.unattributed_uj,
    }
