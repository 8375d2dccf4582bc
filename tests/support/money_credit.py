"""What the operator does with tenants' credit: grants, terms, budgets, prices and corrections."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from money_world import HOLD_US, TENANTS, World, sometimes, terms

from billing import budgets, catalogue, refunds
from billing.errors import NothingToReverse, TariffConflict, TransferConflict
from billing.ledger import credits, grants
from billing.ledger import terms as credit_terms
from metering.database import transaction


class Credit(World):
    """Grants and what limits them."""

    @rule(
        tenant=st.sampled_from(TENANTS),
        amount=st.sampled_from([1, 1_000, 300_000, 5_000_000]),
        cause=st.sampled_from("ab"),
        crashes=sometimes,
    )
    def grant(self, tenant: str, amount: int, cause: str, crashes: bool) -> None:
        known = self.grants.get((tenant, cause))
        with self.committing(crashes) as connection:
            if known is not None and known != amount:
                with pytest.raises(TransferConflict):
                    credits.grant(connection, tenant, amount, cause)
            else:
                assert credits.grant(connection, tenant, amount, cause) is (known is None)
                if not crashes:
                    self.grants[tenant, cause] = amount

    @rule(
        tenant=st.sampled_from(TENANTS),
        amount=st.sampled_from([1, 1_000, 300_000, 5_000_000]),
        promotional=st.booleans(),
        priority=st.sampled_from([1, 100, 500]),
        lasts_us=st.sampled_from([None, HOLD_US // 2, HOLD_US, 3 * HOLD_US]),
        begins_us=st.sampled_from([0, 0, 0, HOLD_US]),
        crashes=sometimes,
    )
    def issue(
        self,
        *,
        tenant: str,
        amount: int,
        promotional: bool,
        priority: int,
        lasts_us: int | None,
        begins_us: int,
        crashes: bool,
    ) -> None:
        cause = f"lot-{next(self.numbers)}"
        starts = self.now_us + begins_us
        with self.committing(crashes) as connection:
            for first in (True, False):
                issued = grants.issue(
                    connection,
                    tenant,
                    amount,
                    cause,
                    promotional=promotional,
                    priority=priority,
                    effective_from_us=starts,
                    expires_at_us=None if lasts_us is None else starts + lasts_us,
                )
                assert issued is first
        if not crashes:
            self.grants[tenant, cause] = amount
            self.lots.append((tenant, cause))

    @precondition(lambda self: self.lots)
    @rule(data=st.data(), crashes=sometimes)
    def reverse_a_lot(self, data: st.DataObject, crashes: bool) -> None:
        tenant, cause = data.draw(st.sampled_from(self.lots))
        with suppress(NothingToReverse), self.committing(crashes) as connection:
            grants.reverse(connection, tenant, cause)

    @rule(tenant=st.sampled_from(TENANTS), limit=st.sampled_from([0, 400_000, 10**7, 10**9]))
    def change_terms(self, tenant: str, limit: int) -> None:
        with transaction(self.database) as connection:
            credit_terms.change(
                connection, tenant, receivable_limit_nano=limit, alert_below_nano=1_000_000
            )

    @rule(
        tenant=st.sampled_from(TENANTS),
        limit=st.sampled_from([0, 500_000, 2_000_000, 10**9]),
        hard=st.booleans(),
        period=st.sampled_from(["day", "ever"]),
    )
    def budget(self, tenant: str, limit: int, hard: bool, period: str) -> None:
        with transaction(self.database) as connection:
            for open_one in budgets.standings(connection, tenant, self.now_us)[1:]:
                budgets.close(connection, tenant, open_one.budget.id)
            budgets.define(connection, tenant, limit_nano=limit, hard=hard, period=period)

    @precondition(lambda self: self.ended)
    @rule(
        data=st.data(),
        amount=st.sampled_from([None, 1, 100_000]),
        reference=st.sampled_from("xy"),
        crashes=sometimes,
    )
    def correct(
        self, data: st.DataObject, amount: int | None, reference: str, crashes: bool
    ) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.ended)))
        with suppress(NothingToReverse, TransferConflict), self.committing(crashes) as connection:
            terms_of_it = {
                "tenant_id": self.admitted[request_id].tenant_id,
                "request_id": request_id,
                "amount_nano": amount,
                "reference": reference,
                "reason": "counted twice",
            }
            refunds.correct(connection, self.signer, **terms_of_it)
            assert refunds.correct(connection, self.signer, **terms_of_it) == 0

    @rule(price=st.sampled_from(["35", "40", "45"]))
    def change_prices(self, price: str) -> None:
        """From now on; what was admitted before keeps what it was promised."""
        with suppress(TariffConflict), transaction(self.database) as connection:
            catalogue.publish(connection, terms(price), self.now_us)
