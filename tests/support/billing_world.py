"""Tenants, requests and settlements in a database: what billing's tests stand on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from billing_cases import ENGINE, STARTED_US, tariff
from sqlalchemy import Connection, func, insert, select, update

from billing import catalogue
from billing.ledger import credits
from billing.ledger.accounts import NEVER_NEGATIVE
from billing.money import parse_nano, split
from billing.receipts import Signer
from billing.settlement import Settlement
from billing.tables import accounts, holds, transfers
from billing.tariffs import Tariff
from engine.records import Work
from metering import content_hash, event_log
from metering import requests as usage
from metering.bodies import BlockBody, BlockRun, Body, EnergyBody, TerminalBody, state
from metering.events import RequestStatus, RequestSummary
from metering.requests import AdmittedRequest
from metering.tables import engine_counters, meter_windows, requests, tenants

FAR_US = 2**52


def add_tenant(
    connection: Connection,
    tenant_id: str = "ten_1",
    *,
    credit: str = "1",
    opt_in: bool = False,
    pays: Tariff | None = None,
) -> None:
    """A tenant with credit, on the tariff `test` unless another is given."""
    connection.execute(
        insert(tenants).values(
            id=tenant_id,
            name=tenant_id,
            currency="USD",
            time_zone="UTC",
            review_opt_in=opt_in,
            review_delivery="now",
            suspended=False,
            created_at_us=STARTED_US,
        )
    )
    published = catalogue.publish(connection, pays or tariff(), 0)
    catalogue.assign(connection, tenant_id, published.tariff, 0)
    if nano := parse_nano(credit):
        credits.grant(connection, tenant_id, nano, "first")


def add_request(
    connection: Connection, request_id: str = "req_1", tenant_id: str = "ten_1", **fields: Any
) -> AdmittedRequest:
    """A request's row, as admission writes it, without a hold."""
    pinned = catalogue.tariff_in_force(
        connection, tenant_id, fields.get("started_at_us", STARTED_US)
    )
    values: dict[str, Any] = {
        "id": request_id,
        "tenant_id": tenant_id,
        "key_id": "key_1",
        "model": "tiny",
        "route": "generate",
        "tariff_version_id": pinned.id,
        "parameters": {},
        "prompt": "hello",
        "input_tokens": 20,
        "max_tokens": 100,
        "max_cost_nano": None,
        "end_user": None,
        "tags": None,
        "test_mode": False,
        "started_at_us": STARTED_US,
    }
    admitted = AdmittedRequest(**(values | fields))
    usage.admit(connection, admitted)
    return admitted


def ended(
    connection: Connection, settlement: Settlement, summary: RequestSummary, output: str = "text"
) -> RequestSummary:
    """End a request as the recorder does: its row final, its summary stored, then settled."""
    row = connection.execute(select(requests).where(requests.c.id == summary.request_id)).one()
    matching = msgspec.structs.replace(
        summary,
        tenant_id=row.tenant_id,
        tariff_version_id=row.tariff_version_id,
        input_tokens=row.input_tokens,
        output_sha256=content_hash.of_text(row.content_salt, output),
    )
    usage.finalise(connection, matching, output)
    settlement.settle(connection, matching)
    return matching


def settlement(folder: Path) -> Settlement:
    """A settlement with a key of its own."""
    return Settlement(Signer.open(folder / "keys" / "receipt.pem"), ENGINE)


def mark(connection: Connection, request_id: str, status: RequestStatus) -> None:
    """Set a request's status without settling it: what only a defect would do."""
    connection.execute(
        update(requests).where(requests.c.id == request_id).values(status=status.value)
    )


def balances(connection: Connection, tenant_id: str | None = "ten_1") -> dict[str, int]:
    """Non-zero balances of a tenant, or of the operator, by kind of account."""
    owned = (
        accounts.c.tenant_id.is_(None) if tenant_id is None else accounts.c.tenant_id == tenant_id
    )
    rows = connection.execute(
        select(accounts.c.kind, accounts.c.credits_nano - accounts.c.debits_nano).where(owned)
    )
    return {kind: balance for kind, balance in rows if balance}


def moved(connection: Connection, request_id: str) -> dict[str, int]:
    """What was booked for a request, by the last part of the transfer's id."""
    rows = connection.execute(
        select(transfers.c.id, transfers.c.amount_nano).where(transfers.c.request_id == request_id)
    )
    return {name.rpartition("/")[2]: amount for name, amount in rows}


def hold_state(connection: Connection, request_id: str = "req_1") -> str | None:
    """The state of a request's hold, or null where there is none."""
    return connection.scalar(select(holds.c.state).where(holds.c.request_id == request_id))


def books_balance(connection: Connection) -> None:
    """Assert what holds at any committed moment: the books are square, and true to the transfers.

    Sums are zero, no guarded account is below zero, projections equal the transfers, and the held
    credit is that of pending holds.
    """
    debits: dict[str, int] = {}
    credited: dict[str, int] = {}
    for debit, credit, amount in connection.execute(
        select(transfers.c.debit_account_id, transfers.c.credit_account_id, transfers.c.amount_nano)
    ):
        debits[debit] = debits.get(debit, 0) + amount
        credited[credit] = credited.get(credit, 0) + amount
    total = 0
    held: dict[str, int] = {}
    for row in connection.execute(select(accounts)):
        assert row.debits_nano == debits.get(row.id, 0), row.id
        assert row.credits_nano == credited.get(row.id, 0), row.id
        balance = row.credits_nano - row.debits_nano
        total += balance
        if row.kind in NEVER_NEGATIVE:
            assert balance >= 0, row.id
        if row.kind == "holds":
            held[row.tenant_id] = balance
    assert total == 0
    pending: dict[str, int] = {}
    for tenant_id, amount in connection.execute(
        select(holds.c.tenant_id, holds.c.amount_nano).where(holds.c.state == "pending")
    ):
        pending[tenant_id] = pending.get(tenant_id, 0) + amount
    assert {owner: nano for owner, nano in held.items() if nano} == {
        owner: nano for owner, nano in pending.items() if nano
    }


def emit(connection: Connection, summary: RequestSummary, epoch: str = "engine-1") -> None:
    """Write the usage events, counters and meter window that such a summary is folded from."""
    blocks = _blocks(summary, epoch)
    stated: list[Body] = [BlockRun((block,)) for block in blocks]
    energy = summary.energy
    stated.append(
        EnergyBody(
            request_id=summary.request_id,
            index=0,
            through_block=summary.blocks - 1,
            energy_uj=energy.energy_uj,
            energy_class=energy.energy_class,
            source=energy.source,
            scope=energy.scope,
            method=energy.method,
            uncertainty_pct=energy.uncertainty_pct,
            device="+".join(energy.devices),
            epoch=epoch,
            start_ns=0,
            end_ns=1,
            weights=energy.weights,
            update_period_us=energy.update_period_us,
        )
    )
    stated.append(
        TerminalBody(
            request_id=summary.request_id,
            status=summary.status,
            finish_reason=summary.finish_reason,
            ended_by=summary.ended_by,
            blocks=summary.blocks,
            tokens=summary.output_tokens,
            output_sha256=summary.output_sha256,
            replaced_tail=False,
            detail=None,
        )
    )
    event_log.append(
        connection, [state(body, summary.tenant_id, summary.ended_at_us) for body in stated]
    )
    count(connection, epoch, blocks=len(blocks), tokens=summary.output_tokens)
    window(connection, epoch, energy.energy_uj or 0)


def count(
    connection: Connection, epoch: str, *, blocks: int, tokens: int, withheld: int = 0
) -> None:
    """Add to the engine's own counters."""
    counters = engine_counters.c
    added = connection.execute(
        update(engine_counters)
        .where(counters.engine_epoch == epoch)
        .values(
            steps=counters.steps + blocks,
            blocks=counters.blocks + blocks,
            tokens=counters.tokens + tokens,
            withheld_tokens=counters.withheld_tokens + withheld,
        )
    )
    if not added.rowcount:
        connection.execute(
            insert(engine_counters).values(
                engine_epoch=epoch,
                steps=blocks,
                blocks=blocks,
                tokens=tokens,
                withheld_tokens=withheld,
                updated_at_us=STARTED_US,
            )
        )


def window(connection: Connection, epoch: str, requests_uj: int) -> None:
    """One settled stretch of the meter, all of it the requests'."""
    start_ns = connection.scalar(select(func.count()).select_from(meter_windows)) or 0
    connection.execute(
        insert(meter_windows).values(
            device="cpu",
            epoch=epoch,
            source="cpu_time",
            energy_class="estimated",
            start_ns=start_ns,
            end_ns=start_ns + 1,
            recorded_at_us=STARTED_US,
            meter_uj=requests_uj,
            requests_uj=requests_uj,
            idle_uj=0,
            overhead_uj=0,
            external_uj=0,
            unattributed_uj=0,
        )
    )


def _blocks(summary: RequestSummary, epoch: str) -> list[BlockBody]:
    """Blocks that add up to what the summary says of them."""
    if not summary.blocks:
        return []
    drafting, even = summary.drafting, [1] * summary.blocks
    bits = summary.information_ubits
    # A block that accepted something is a verified one; where none is, nothing was accepted.
    accepting = [index < max(1, summary.verified_blocks) for index in range(summary.blocks)]
    return [
        BlockBody(
            request_id=summary.request_id,
            block_index=index,
            engine_epoch=epoch,
            step_index=index,
            start_ns=index,
            end_ns=index + 1,
            token_ids=(7,) * tokens,
            pieces=(b"text",) * tokens,
            logprobs_unats=(-1,) * tokens,
            entropies_unats=(1,) * tokens,
            information_ubits=None if bits is None else information,
            drafted_nodes=nodes,
            drafted_depth=depth,
            verified_nodes=verified,
            accepted_tokens=accepted,
            cached_tokens=cached,
            anchor=None,
            work=Work(),
            withheld_tokens=0,
            cached_prompt_tokens=0 if index else summary.cached_input_tokens,
            forced=tuple(range(forced)),
        )
        for index, (tokens, information, nodes, depth, verified, accepted, cached, forced) in (
            enumerate(
                zip(
                    split(summary.output_tokens, even),
                    split(bits or 0, even),
                    split(drafting.drafted_nodes, even),
                    split(drafting.drafted_depth, even),
                    split(drafting.verified_nodes, even),
                    split(drafting.accepted_tokens, accepting),
                    split(drafting.cached_tokens, even),
                    split(summary.forced_tokens, even),
                    strict=True,
                )
            )
        )
    ]
