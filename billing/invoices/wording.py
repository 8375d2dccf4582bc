"""What invoices say in words: the same on the page, on paper and in the listing."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from billing.invoices.minor_units import format_minor
from billing.invoices.queries import Invoice, Line
from metering.wording import counted

COMPONENTS = {
    "input": "Input tokens",
    "output": "Output tokens",
    "review": "Human review",
    "energy": "Energy",
    "information": "Information",
    "blocks": "Verified blocks",
    "request": "Request fee",
    "minimum": "Minimum price of requests",
    "maximum": "Maximum price of requests",
    "write_off": "Not covered by a hold, and waived",
    "adjustment": "Refunds, and review fees given back",
    "credit": "Paid from credit",
}
TITLES = {"period": "Invoice", "correction": "Correction invoice"}


def title(invoice: Invoice) -> str:
    """What kind of document it is, with its number where it has one."""
    kind = TITLES.get(invoice.row.kind.partition("-")[0], "Invoice")
    if invoice.row.number is None:
        return f"{kind} ({invoice.row.state})"
    return f"{kind} {invoice.row.number}"


def description(line: Line, invoice: Invoice) -> str:
    """What a line is for; corrections of an earlier month name it."""
    name = COMPONENTS.get(line.component, line.component.replace("_", " "))
    if line.kind == "credit" and line.amount_minor > 0:
        name = "Returned into credit"
    text = f"{name} ({line.detail})" if line.detail else name
    if line.period != invoice.row.period:
        text += f", correction of {line.period}"
    return text


def quantity(line: Line) -> str:
    """How much a line is of, with its unit."""
    return counted(line.quantity, line.unit)


def amount(invoice: Invoice, amount_minor: int) -> str:
    """An amount with its decimals, without its currency."""
    return format_minor(amount_minor, invoice.row.minor_nano)


def minor(amount_minor: int, minor_nano: int) -> str:
    """The same, of a row in a list."""
    return format_minor(amount_minor, minor_nano)


def day(at_us: int | None, time_zone: str) -> str:
    """A calendar day in the tenant's time zone; a dash where there is none."""
    if at_us is None:
        return "–"
    at = datetime.fromtimestamp(at_us // 10**6, UTC).astimezone(ZoneInfo(time_zone))
    return f"{at:%Y-%m-%d}"


def period(invoice: Invoice) -> str:
    """The service period, last day included."""
    row = invoice.row
    return f"{day(row.start_us, row.time_zone)} to {day(row.end_us - 1, row.time_zone)}"
