"""Refunds: once per reference, back to where the charge was paid from, and signed."""

from __future__ import annotations

from pathlib import Path

import pytest
from billing_cases import summary, tariff
from billing_world import FAR_US, add_request, add_tenant, balances, ended, settlement
from credit_cases import paid_by, square
from sqlalchemy import Engine, select

from billing import refunds
from billing.errors import NothingToReverse, TransferConflict
from billing.gate import HoldGate
from billing.ledger import funding, grants, terms
from billing.ledger.accounts import AccountKind
from billing.ledger.funding import ByAccount
from billing.money import NANO
from billing.reconciliation import reconcile
from billing.tables import transfers
from metering.database import transaction


def test_a_refund_returns_where_it_came_from_and_is_signed(
    database: Engine, tmp_path: Path, at: dict[str, int]
) -> None:
    settler = settlement(tmp_path)
    with transaction(database) as connection:
        settler._signer.register(connection)
        add_tenant(connection, credit="0.000004", pays=tariff())  # of 6,000 nano needed
        grants.issue(connection, "ten_1", 1_000, "gift", promotional=True, priority=1)
        terms.change(connection, "ten_1", receivable_limit_nano=NANO)
        request = add_request(connection)
        HoldGate(lookahead_tokens=10).admit(connection, request, expires_at_us=FAR_US)
        ended(connection, settler, summary())

        def correct(nano: int | None, reference: str) -> int:
            return refunds.correct(
                connection,
                settler._signer,
                tenant_id="ten_1",
                request_id="req_1",
                amount_nano=nano,
                reference=reference,
                reason="counted twice",
            )

        assert paid_by(connection, "req_1") == [
            ("gift", 1_000),
            ("credit", 4_000),
            ("receivable", 1_000),
        ]
        assert correct(2_500, "ticket-1") == 2_500
        assert correct(2_500, "ticket-1") == 0  # once per reference
        assert paid_by(connection, "req_1")[1:] == [("credit", 2_500), ("receivable", 0)]
        for other in (2_499, 2_501, 3_501):
            with pytest.raises(TransferConflict, match=r"ticket-1 gave back 0\.0000025 USD before"):
                correct(other, "ticket-1")
        assert correct(None, "ticket-1") == 0
        with pytest.raises(NothingToReverse, match=r"req_1 has 0\.0000035 USD left to refund"):
            correct(3_501, "ticket-2")
        assert correct(None, "ticket-3") == 3_500
        with pytest.raises(NothingToReverse):
            correct(None, "ticket-4")
        kinds = balances(connection)
        assert (kinds["tenant_credit"], kinds["promotional"]) == (4_000, 1_000)
        square(connection)
        signed = [
            found.check
            for found in reconcile(connection).differences
            if "adjust" in found.check or "refund" in found.check or "receipt" in found.check
        ]
        assert signed == []


def test_no_reference_of_a_refund_is_anothers_with_its_account(
    database: Engine, tmp_path: Path, at: dict[str, int]
) -> None:
    """Nor is an earlier booking made again, whose transfers were named with a colon."""
    settler = settlement(tmp_path)
    with transaction(database) as connection:
        settler._signer.register(connection)
        add_tenant(connection, credit="1", pays=tariff())
        grants.issue(connection, "ten_1", 1_000, "gift", promotional=True, priority=1)
        request = add_request(connection)
        HoldGate(lookahead_tokens=10).admit(connection, request, expires_at_us=FAR_US)
        ended(connection, settler, summary())

        def correct(nano: int, reference: str) -> int:
            return refunds.correct(
                connection,
                settler._signer,
                tenant_id="ten_1",
                request_id="req_1",
                amount_nano=nano,
                reference=reference,
                reason="counted twice",
            )

        assert correct(100, "a:promotional") == 100
        assert correct(5_200, "a") == 5_200  # 4,900 from credit, and 300 from the gift
        assert balances(connection)["promotional"] == 300
        square(connection)
        names = funding.names

        def with_colons(cause: str, parts: ByAccount) -> list[tuple[str, AccountKind, int]]:
            return [
                (f"{cause}:{kind}" if name != cause else name, kind, amount)
                for name, kind, amount in names(cause, parts)
            ]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(funding, "names", with_colons)
            assert correct(400, "earlier") == 400
        assert "req_1/correction/earlier:promotional" in connection.scalars(select(transfers.c.id))
        assert correct(400, "earlier") == 0
        with pytest.raises(TransferConflict):
            correct(300, "earlier")
        square(connection)
