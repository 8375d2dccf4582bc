"""Requests as admission, the recorder and the sweeper drive them, and usage from elsewhere."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from billing_cases import energy, unit
from billing_sweeps import expire_grants, expire_holds, lapse_reviews
from billing_world import add_request, emit, hold_state
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from money_world import HOLD_US, TENANTS, Crash, World, sometimes
from sqlalchemy import select

from billing import catalogue, outside, review
from billing.credit_tables import grants
from billing.errors import (
    BudgetExhausted,
    CostCeilingTooLow,
    HoldConflict,
    InsufficientCredit,
)
from billing.ledger import holds
from billing.rating import rate
from billing.receipt_documents import iso
from billing.tables import holds as holds_table
from metering import content_hash
from metering import requests as usage
from metering.database import transaction
from metering.events import EndedBy, RequestStatus, UnitSummary
from metering.ingestion import envelopes, intake
from metering.ingestion.envelopes import OutsideEvent
from metering.ingestion.intake import Result

units = st.builds(
    unit,
    st.integers(0, 12),
    st.sampled_from(["complete", "fragment"]),
    st.sampled_from(["standard", "reduced", "review", None]),
)


orders = st.fixed_dictionaries(
    {
        "max_cost_nano": st.sampled_from([None, None, 0, 280_000, 500_000, 900_000]),
        "max_tokens": st.integers(1, 80),
        "test_mode": sometimes,
    }
)
# Tokens that no gate was asked about: what only a defect would emit must not break the books.
overruns = st.sampled_from([0, 0, 0, 60, 2_000])
ends = st.fixed_dictionaries(
    {
        "ended_by": st.sampled_from(EndedBy),
        "review_reason": st.sampled_from(
            [None, "request_confidence", "unit_confidence", "audit", "missing_score"]
        ),
        "energy": st.sampled_from([0, 40 * 10**6, 10**9]).map(lambda uj: energy("estimated", uj)),
    }
)


LATE_US = (0, 99, 20 * 86_400 * 10**6, 45 * 86_400 * 10**6)


def reported(tenant_id: str, number: int, at_us: int) -> bytes:
    """An outside event, as its engine sends it."""
    return json.dumps(
        {
            "specversion": "1.0",
            "id": f"event-{number}",
            "source": "vllm",
            "type": "dev.dflash.usage.reported.v1",
            "subject": tenant_id,
            "time": iso(at_us),
            "data": {"model": "other", "input_tokens": 7, "output_tokens": 9},
        }
    ).encode()


class Requests(World):
    """Each from its hold to its end, with every crash on the way."""

    @rule(
        tenant=st.sampled_from(TENANTS), number=st.integers(0, 3), late_us=st.sampled_from(LATE_US)
    )
    def report(self, tenant: str, number: int, late_us: int) -> None:
        """Another engine reports usage, late, again and again, and it is rated once."""
        first = reported(tenant, number, self.now_us - late_us)
        raw = self.reported.setdefault((tenant, number), first)
        read = envelopes.read(raw, source="vllm", tenant_ids=frozenset(TENANTS), now_us=self.now_us)
        assert isinstance(read, OutsideEvent)
        (answer,) = intake.take(self.database, "mkey_1", [read])
        assert answer.result in {Result.ACCEPTED, Result.DUPLICATE}
        outside.settle_waiting(self.database, self.settlement)

    @rule(tenant=st.sampled_from(TENANTS), order=orders, crashes=sometimes)
    def admit(self, tenant: str, order: dict[str, Any], crashes: bool) -> None:
        self.start(tenant, order, crashes)

    def start(self, tenant: str, order: dict[str, Any], crashes: bool = False) -> str | None:
        request_id = f"req_{next(self.numbers)}"
        try:
            with transaction(self.database) as connection:
                pinned = catalogue.tariff_in_force(connection, tenant, self.now_us)
                request = add_request(
                    connection,
                    request_id,
                    tenant,
                    tariff_version_id=pinned.id,
                    started_at_us=self.now_us,
                    **order,
                )
                self.gate.admit(connection, request, expires_at_us=self.now_us + HOLD_US)
                self.gate.admit(connection, request, expires_at_us=self.now_us + HOLD_US)
                if crashes:
                    raise Crash
        except (InsufficientCredit, BudgetExhausted, CostCeilingTooLow, Crash):
            return None
        self.admitted[request_id] = request
        self.running[request_id] = ()
        return request_id

    @precondition(lambda self: self.running)
    @rule(data=st.data(), added=st.lists(units, min_size=1, max_size=4), crashes=sometimes)
    def commit_a_block(self, data: st.DataObject, added: list[UnitSummary], crashes: bool) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.running)))
        self.commit(request_id, added, crashes)

    def commit(self, request_id: str, added: list[UnitSummary], crashes: bool = False) -> None:
        text = (*self.running[request_id], *added)
        stopped = self.summarise(request_id, text)
        if stopped.output_tokens > self.admitted[request_id].max_tokens:
            return
        with self.committing(crashes) as connection:
            covered = bool(self.gate.cover(connection, stopped))
            if covered and not self.admitted[request_id].test_mode:
                hold = holds.find(connection, request_id)
                assert hold is not None
                pays = catalogue.version(connection, stopped.tariff_version_id).document
                fee = self.admitted[request_id].tenant_id == "ten_wary"
                assert hold.amount_nano >= rate(stopped, pays, review_fee=fee).total_nano
                assert hold.ceiling_nano is None or hold.amount_nano <= hold.ceiling_nano
        if covered and not crashes:
            self.running[request_id] = text

    @precondition(lambda self: self.running)
    @rule(data=st.data(), end=ends, overrun=overruns, crashes=sometimes)
    def settle(self, data: st.DataObject, end: dict[str, Any], overrun: int, crashes: bool) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.running)))
        if overrun:
            self.running[request_id] += (unit(overrun, "fragment"),)
        self.end(request_id, end, crashes)

    def end(self, request_id: str, end: dict[str, Any], crashes: bool = False) -> None:
        stopped = self.summarise(request_id, self.running[request_id])
        final = msgspec.structs.replace(
            stopped,
            **end,
            ended_at_us=self.now_us,
            status=RequestStatus.COMPLETED,
            output_sha256=content_hash.of_text(None, "text"),
        )
        with self.committing(crashes) as connection:
            usage.finalise(connection, final, "text")
            emit(connection, final)
            self.settlement.settle(connection, final)
        if not crashes:
            self.ended[request_id] = final
            del self.running[request_id]

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def settle_again(self, data: st.DataObject) -> None:
        with transaction(self.database) as connection:
            final = self.ended[data.draw(st.sampled_from(sorted(self.ended)))]
            self.settlement.settle(connection, final)

    @rule(
        tenant=st.sampled_from(TENANTS),
        order=orders,
        blocks=st.lists(st.lists(units, min_size=1, max_size=4), max_size=3),
        end=ends,
    )
    def serve(
        self,
        tenant: str,
        order: dict[str, Any],
        blocks: list[list[UnitSummary]],
        end: dict[str, Any],
    ) -> None:
        """A request from admission to its end, as most go."""
        request_id = self.start(tenant, order)
        if request_id is not None:
            for added in blocks:
                self.commit(request_id, added)
            self.end(request_id, end)

    @precondition(lambda self: any(not text for text in self.running.values()))
    @rule(data=st.data())
    def void_what_never_ran(self, data: st.DataObject) -> None:
        idle = sorted(request_id for request_id, text in self.running.items() if not text)
        request_id = data.draw(st.sampled_from(idle))
        with transaction(self.database) as connection:
            if hold_state(connection, request_id) == "pending":
                holds.void(connection, request_id)
                holds.void(connection, request_id)
            else:
                with pytest.raises(HoldConflict):
                    holds.void(connection, request_id)
        self.end(request_id, {"ended_by": EndedBy.OPERATOR})

    @precondition(lambda self: self.admitted)
    @rule()
    def renew(self) -> None:
        with transaction(self.database) as connection:
            holds.renew(connection, self.admitted, self.now_us + HOLD_US)

    @rule(elapsed_us=st.sampled_from([1, HOLD_US // 2, HOLD_US, HOLD_US, review.SLA_US]))
    def sweep(self, elapsed_us: int) -> None:
        self.now_us += elapsed_us
        with transaction(self.database) as connection:
            expire_holds(connection, self.now_us)
            expire_grants(connection, self.now_us)
            late = (grants.c.expires_at_us <= self.now_us, grants.c.remaining_nano > 0)
            assert connection.execute(select(grants.c.id).where(*late)).all() == []
            lapse_reviews(connection, self.now_us, self.signer)
            outlived = select(holds_table.c.request_id).where(
                holds_table.c.state == "pending", holds_table.c.expires_at_us <= self.now_us
            )
            assert connection.execute(outlived).all() == []
