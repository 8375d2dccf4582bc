"""The door: quote, check rate and credit, place the hold, or refuse. One transaction."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import uuid_utils
from sqlalchemy import Engine as Database
from sqlalchemy import bindparam, select
from sqlalchemy.exc import IntegrityError

from api import limits, rates
from api.auth import Principal
from api.errors import TenantSuspended
from api.inference import idempotency
from api.inference.idempotency import IdempotencyKey
from api.inference.orders import Order
from api.tables import api_keys
from billing import catalogue, lineages, retention
from billing.gate import HoldGate
from billing.ledger.accounts import lock_tenant
from billing.review_items import Delivery
from engine.records import EngineInfo
from engine.requests import GenerationRequest
from metering import clock, content_hash
from metering import requests as usage_requests
from metering.database import transaction
from metering.prepared import Prepared
from metering.requests import AdmittedRequest, choice_ids
from metering.tables import tenants

# What never changes of a tenant and a key, and what spares a suspended tenant the wait.
_ASKING = Prepared(
    select(
        tenants.c.suspended,
        tenants.c.currency,
        api_keys.c.project_id,
        lineages.lineage_of(api_keys.c.id).label("lineage_id"),
    )
    .outerjoin(api_keys, api_keys.c.id == bindparam("key_id"))
    .where(tenants.c.id == bindparam("tenant_id"))
)
# What its owner and the operator may change at any time: read under the tenant's lock.
_TERMS = Prepared(
    select(tenants.c.suspended, tenants.c.review_delivery, tenants.c.review_opt_in).where(
        tenants.c.id == bindparam("tenant_id")
    )
)


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request with a hold behind it, ready for the engine."""

    usage: AdmittedRequest
    generation: GenerationRequest


@dataclass(frozen=True, slots=True)
class Replay:
    """A request that this idempotency key already stands for."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Admission:
    """Admits orders against rates, tariffs and credit."""

    database: Database
    gate: HoldGate
    requests_per_minute: int
    hold_lifetime_s: int
    engine: Callable[[], EngineInfo]  # what runs at the moment: the row of each request says so
    replica: str | None = None  # that engine's name
    calibration: Callable[[], str | None] = lambda: None  # the version in force at the moment

    def admit(
        self, principal: Principal, order: Order, key: IdempotencyKey | None
    ) -> list[Admitted] | Replay:
        """Admit an order: rows, holds and the idempotency key, all or none.

        Each choice is a request of its own, with its own hold, meter, receipt and place in the
        rate. The first one has the prompt's tokens; a `max_cost` is shared out evenly.

        Raises RateLimited, TenantSuspended, InsufficientCredit, BudgetExhausted,
        CostCeilingTooLow, NoTariff, IdempotencyMismatch, Conflict for the replay of what was
        erased, or InvalidParameter for more tokens or choices than a minute ever allows; nothing
        was changed then.
        """
        try:
            return self._admit(principal, order, key)
        except IntegrityError:
            # Two admissions raced for one idempotency key; the loser finds the winner's request.
            if key is None:
                raise
            return self._admit(principal, order, key)

    def _admit(
        self, principal: Principal, order: Order, key: IdempotencyKey | None
    ) -> list[Admitted] | Replay:
        tenant_id = principal.required_tenant_id
        # Nothing is shown or charged before a later commit that waits for the disk.
        with transaction(self.database, durable=False) as connection:
            if key is not None:
                earlier = idempotency.claimed_by(
                    connection, tenant_id, order.route, key, test_mode=principal.test_mode
                )
                if earlier is not None:
                    return Replay(earlier)
            asking = _ASKING.one(connection, {"tenant_id": tenant_id, "key_id": principal.key_id})
            _check_suspended(asking.suspended)
            lineage_id = asking.lineage_id or principal.key_id
            limited = limits.applying(connection, tenant_id, lineage_id)
            # All of the order before any of it is counted: waiting would not help.
            limits.check_choices(order.choices, self.requests_per_minute, "a minute")
            limits.check_order(
                limited,
                choices=order.choices,
                input_tokens=len(order.input_ids),
                max_tokens=order.max_tokens,
            )
            asked_us = clock.now_us()
            for _ in range(order.choices):
                rates.count(connection, lineage_id, self.requests_per_minute, asked_us)
            # Whoever changes its prices or terms locks the tenant first: from here on they stand,
            # and each change that was made lies before the moment at which this request starts.
            credit_nano = lock_tenant(connection, tenant_id, asking.currency)
            terms = _TERMS.one(connection, {"tenant_id": tenant_id})
            _check_suspended(terms.suspended)
            held = terms.review_opt_in and terms.review_delivery == Delivery.HELD
            now = clock.now_us()
            tariff = catalogue.tariff_in_force(connection, tenant_id, now)
            request_id = f"req_{uuid_utils.uuid7().hex}"
            ceiling = order.max_cost_nano
            usages = [
                AdmittedRequest(
                    id=choice_id,
                    tenant_id=tenant_id,
                    key_id=principal.key_id,
                    model=order.model,
                    route=order.route,
                    tariff_version_id=tariff.id,
                    parameters=order.parameters
                    | {"choice": choice}
                    | ({"held": True} if held and not principal.test_mode else {}),
                    prompt=order.prompt,
                    input_tokens=0 if choice else len(order.input_ids),
                    max_tokens=order.max_tokens,
                    max_cost_nano=None if ceiling is None else ceiling // order.choices,
                    end_user=order.end_user,
                    tags=order.tags,
                    test_mode=principal.test_mode,
                    started_at_us=now,
                    project_id=asking.project_id,
                    engine=self.engine(),
                    content_salt=content_hash.new_salt(),
                    replica=self.replica,
                    calibration=self.calibration(),
                )
                for choice, choice_id in enumerate(choice_ids(request_id, order.choices))
            ]
            for choice, usage in enumerate(usages):
                limits.check(connection, limited, usage)
                usage_requests.admit(connection, usage)
                self.gate.admit(
                    connection,
                    usage,
                    expires_at_us=now + self.hold_lifetime_s * 10**6,
                    # Each hold takes from it, so it is what the lock found for the first one only.
                    credit_nano=None if choice else credit_nano,
                    opted_in=terms.review_opt_in,
                )
            if key is not None:
                idempotency.claim(
                    connection,
                    tenant_id,
                    order.route,
                    key,
                    request_id=request_id,
                    salt=usages[0].content_salt,
                    now_us=now,
                )
            scope = retention.cache_scope(connection, tenant_id)
        return [
            Admitted(usage, _generation_request(usage, order, choice, scope))
            for choice, usage in enumerate(usages)
        ]


def _check_suspended(suspended: bool) -> None:
    if suspended:
        raise TenantSuspended("this tenant is suspended")


def _generation_request(
    usage: AdmittedRequest, order: Order, choice: int, cache_scope: str
) -> GenerationRequest:
    deadline_ns = (
        None if order.deadline_ms is None else time.monotonic_ns() + order.deadline_ms * 1_000_000
    )
    return GenerationRequest(
        request_id=usage.id,
        tenant_id=cache_scope,  # the engine knows tenants only by what they may share
        prompt_ids=order.input_ids,
        max_tokens=order.max_tokens,
        sampling=order.sampling,
        stop=order.stop,
        draft=order.draft,
        draft_scope=order.draft_scope,
        deadline_ns=deadline_ns,
        choice=choice,
        top_logprobs=order.top_logprobs or 0,
        json_schema=order.json_schema,
    )
