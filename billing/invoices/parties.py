"""Who issues invoices and who receives them. Each invoice keeps both as they were."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

import msgspec
from sqlalchemy import Connection, exists, select

from billing.errors import InvalidAmount, InvoiceConflict, UnknownTenant
from billing.invoices.numbers import CREDIT_NOTES
from billing.invoices.tables import invoice_customers, invoice_issuer, invoice_taxes
from metering import clock
from metering.tables import tenants

HOUR_US = 3600 * 10**6
PERCENT_MAX = 100
DAYS_MAX = 3650
_NAMED = ("name", "address", "tax_id")  # of a customer, beside its tax
_SERIES = re.compile(r"[A-Z0-9._/-]{1,16}")


class Issuer(msgspec.Struct, frozen=True):
    """The operator, as invoices name it, and the terms they are issued on."""

    name: str = "The operator of this gateway"
    address: str = ""
    tax_id: str = ""
    series: str = "INV"  # before the number of an invoice
    grace_us: int = 48 * HOUR_US  # how long after its end a period waits for late events
    due_days: int = 14
    # Days after that: of the reminders, and from when on nothing more is had on account.
    reminder_days: str = "1,7,14"
    pause_days: int | None = 14  # null: that goes on


class Customer(msgspec.Struct, frozen=True):
    """A tenant, as its invoices name it, and the tax on what it buys."""

    name: str
    address: str = ""
    tax_id: str = ""
    tax_name: str = "VAT"
    tax_percent: Decimal = Decimal(0)


def issuer(connection: Connection) -> Issuer:
    """The issuer as set, or the default."""
    row = connection.execute(select(invoice_issuer)).mappings().one_or_none()
    if row is None:
        return Issuer()
    return Issuer(**{name: row[name] for name in Issuer.__struct_fields__})


def set_issuer(connection: Connection, found: Issuer) -> None:
    """Set the issuer of invoices from now on; raises InvoiceConflict for a series that is none, or
    days of reminders that are none.
    """
    reminders(found)
    if not _SERIES.fullmatch(found.series) or found.series == CREDIT_NOTES:
        raise InvoiceConflict(
            f"a series is 1 to 16 of A-Z, 0-9 and ._/-, and not {CREDIT_NOTES}, the credit notes'"
        )
    connection.execute(invoice_issuer.delete())
    connection.execute(invoice_issuer.insert().values(id="issuer", **msgspec.structs.asdict(found)))


def reminders(found: Issuer) -> list[int]:
    """The days after an invoice's due day on which its customer is reminded, ascending."""
    texts = [text.strip() for text in found.reminder_days.split(",") if text.strip()]
    days = [int(text) for text in texts if re.fullmatch(r"[0-9]{1,4}", text)]
    if len(days) != len(texts) or days != sorted(set(days)) or (days and days[-1] > DAYS_MAX):
        raise InvoiceConflict("days of reminders are ascending numbers, such as 1,7,14")
    return days


def customer(connection: Connection, tenant_id: str, at_us: int | None = None) -> Customer:
    """The tenant as set, or by its name alone, with the tax in force at a moment, or now.

    Raises UnknownTenant.
    """
    name = connection.scalar(select(tenants.c.name).where(tenants.c.id == tenant_id))
    if name is None:
        raise UnknownTenant(f"no tenant {tenant_id!r}")
    row = (
        connection.execute(
            select(invoice_customers).where(invoice_customers.c.tenant_id == tenant_id)
        )
        .mappings()
        .one_or_none()
    )
    found = Customer(name) if row is None else Customer(**{each: row[each] for each in _NAMED})
    taxed = _taxed(connection, tenant_id, clock.now_us() if at_us is None else at_us)
    if taxed is None:
        return found
    tax_name, tax_percent = taxed
    return msgspec.structs.replace(found, tax_name=tax_name, tax_percent=tax_percent)


def set_customer(
    connection: Connection, tenant_id: str, found: Customer, taxed_from_us: int | None = None
) -> None:
    """Set what a tenant's invoices say of it from now on; raises UnknownTenant.

    Its tax is in force from a moment on, or from now; the first that is set, from ever.
    """
    before = customer(connection, tenant_id)
    connection.execute(invoice_customers.delete().where(invoice_customers.c.tenant_id == tenant_id))
    named = {each: getattr(found, each) for each in _NAMED}
    connection.execute(invoice_customers.insert().values(tenant_id=tenant_id, **named))
    row = invoice_taxes.c
    is_first = not connection.scalar(select(exists().where(row.tenant_id == tenant_id)))
    tax = (found.tax_name, found.tax_percent)
    if taxed_from_us is not None:
        from_us = taxed_from_us
    elif is_first:
        from_us = 0
    elif tax == (before.tax_name, before.tax_percent):
        return  # and what is to be in force later stays so
    else:
        from_us = clock.now_us()
    connection.execute(
        invoice_taxes.delete().where(row.tenant_id == tenant_id, row.from_us >= from_us)
    )
    connection.execute(
        invoice_taxes.insert().values(
            tenant_id=tenant_id,
            from_us=from_us,
            tax_name=found.tax_name,
            tax_percent=f"{found.tax_percent:f}",
        )
    )


def _taxed(connection: Connection, tenant_id: str, at_us: int) -> tuple[str, Decimal] | None:
    row = invoice_taxes.c
    found = connection.execute(
        select(row.tax_name, row.tax_percent)
        .where(row.tenant_id == tenant_id, row.from_us <= at_us)
        .order_by(row.from_us.desc())
        .limit(1)
    ).one_or_none()
    return None if found is None else (found.tax_name, Decimal(found.tax_percent))


def parse_percent(text: str) -> Decimal:
    """A tax rate such as "19" or "8.875"; raises InvalidAmount."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise InvalidAmount(f"not a percentage: {text[:20]!r}") from None
    if not value.is_finite() or not 0 <= value <= PERCENT_MAX or value != round(value, 4):
        raise InvalidAmount("a tax rate is 0 to 100 percent, with at most four decimals")
    return value


def to_text(party: Issuer | Customer) -> str:
    """A party as an invoice keeps it."""
    return msgspec.json.encode(party, order="sorted").decode()
