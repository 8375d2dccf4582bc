"""`POST /estimate`: what a request would cost, before it is sent."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from litestar import post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import Meta
from sqlalchemy import Engine as Database

from api import tenants
from api.auth import Principal, Scope, requires, tenant_in_scope
from api.bodies import StrictBody
from api.error_reports import documented
from api.errors import Forbidden, InvalidParameter, NotFound, Unauthenticated
from api.inference import order_reader
from api.inference.orders import Order, ServedModel
from api.inference.schemas import GenerateRequest
from api.replicas import Replicas
from api.schemas import TenantQuery
from billing import catalogue, queries, quotes
from billing.errors import CostCeilingTooLow, NoTariff
from billing.money import format_nano, plain
from billing.tariffs import Tariff
from engine.errors import InvalidRequest, ModelNotFound, PromptTooLong
from metering import clock
from metering.database import snapshot
from metering.energy import Choice


class EstimateRequest(GenerateRequest, frozen=True, forbid_unknown_fields=True):
    """The body of `/generate`, or `input_tokens` in place of a prompt. What doesn't touch the
    price is checked as there, and left aside.
    """

    input_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class TariffView(msgspec.Struct, frozen=True):
    """The tariff version that a request admitted now would be pinned to."""

    id: str
    name: str
    version: int


class GreenView(msgspec.Struct, frozen=True):
    """What asking for green energy would come to at this moment; it may be otherwise in the next.

    `multiplier` is of the energy's price, and is in `expected`; null where nothing is taken off.
    """

    replica: str
    reason: str
    candidates: list[dict[str, Any]]
    multiplier: str | None


class EstimateView(msgspec.Struct, frozen=True):
    """What the request would cost. It never costs more than `worst`, whatever is generated;
    `expected` is a guess from what the tenant's requests came to lately, all of `max_tokens` used.
    Neither is above the body's `max_cost`, with which the answer ends.
    `review_fee` says whether a review's fee is counted in both; `worst` assumes no discount.
    """

    input_tokens: int
    max_tokens: int
    expected: str
    worst: str
    currency: str
    review_fee: bool
    tariff: TariffView
    green: GreenView | None


@post(
    "/estimate",
    guards=[requires(Scope.READ_BILLING)],
    summary="Estimate a request's cost",
    status_code=200,
    responses=documented(
        *(InvalidParameter, InvalidRequest, PromptTooLong, CostCeilingTooLow, NoTariff),
        *(Unauthenticated, Forbidden, NotFound, ModelNotFound),
    ),
    dto=StrictBody,
    return_dto=None,
)
async def estimate(  # noqa: PLR0917 -- injected by name, called by the router alone
    data: JSONBody[EstimateRequest],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    served: NamedDependency[ServedModel],
    replicas: NamedDependency[Replicas],
    tenant_id: TenantQuery = None,
) -> EstimateView:
    """Price a request under the tariff in force. Nothing is held, counted or kept."""
    order, input_tokens = await served.turns.read(principal.tenant_id, read_order, served, data)
    if order.max_energy_uj is not None:
        replicas.place(order)  # which refuses it where no energy is metered, and changes nothing
    choice = None if order.energy is None else replicas.greenest()
    return await asyncio.to_thread(
        _quoted, database, principal, tenant_id, order, input_tokens, choice
    )


def read_order(served: ServedModel, wire: EstimateRequest) -> tuple[Order, int]:
    """The order that `/generate` would take for this, and its input's tokens; raises as it does.

    Raises InvalidParameter when the input is stated as a prompt and as a count.
    """
    if wire.input_tokens is None:
        order = order_reader.read(served, wire)
        return order, len(order.input_ids)
    if wire.prompt is not None or wire.messages is not None:
        raise InvalidParameter("give either input_tokens or a prompt", "input_tokens")
    order = order_reader.with_input(served, wire, None, (), wire.input_tokens)
    return order, wire.input_tokens


def _quoted(  # noqa: PLR0917 -- the handler's other half, on a thread
    database: Database,
    principal: Principal,
    tenant_id: str | None,
    order: Order,
    input_tokens: int,
    choice: Choice | None,
) -> EstimateView:
    with snapshot(database) as connection:
        tenant = tenants.require(connection, tenant_in_scope(connection, principal, tenant_id))
        tariff = catalogue.tariff_in_force(connection, tenant.id, clock.now_us())
        typical = queries.typical(connection, tenant.id)
    terms, review = tariff.document, tenant.review_opt_in and tariff.document.review is not None
    tokens, ceiling = (input_tokens, order.max_tokens), order.max_cost_nano
    worst = quotes.worst_case(terms, *tokens, review=review)
    expected = quotes.expected(
        terms,
        *tokens,
        review=review,
        typical=typical,
        green=choice is not None and choice.reason.is_choice,
    )
    if ceiling is not None:
        quotes.check_ceiling(terms, ceiling, *tokens, review=review)
        worst, expected = min(worst, ceiling), min(expected, ceiling)
    return EstimateView(
        input_tokens=input_tokens,
        max_tokens=order.max_tokens,
        expected=format_nano(expected),
        worst=format_nano(worst),
        currency=tariff.currency,
        review_fee=review,
        tariff=TariffView(tariff.id, tariff.tariff, tariff.version),
        green=None if choice is None else _green(choice, terms),
    )


def _green(choice: Choice, terms: Tariff) -> GreenView:
    multiplier = terms.energy.green if terms.energy and choice.reason.is_choice else None
    return GreenView(
        **choice.stated(), multiplier=None if multiplier is None else plain(multiplier)
    )
