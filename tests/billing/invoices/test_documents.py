"""An invoice as JSON, page and paper."""

from __future__ import annotations

import dataclasses
import json
from decimal import Decimal

import msgspec
import pytest

from billing.invoices import documents, pdf, wording
from billing.invoices.parties import Customer, Issuer
from billing.invoices.queries import CreditNote, Invoice, InvoiceRow, Line, Payment

CENT = 10_000_000


@pytest.fixture
def invoice() -> Invoice:
    row = InvoiceRow(
        id="inv_1",
        tenant_id="ten_1",
        number="INV-000007",
        kind="period",
        period="2026-10",
        start_us=1_790_805_600_000_000,  # 2026-10-01 in Berlin
        end_us=1_793_487_600_000_000,  # 2026-11-01 in Berlin, an hour more than 31 days later
        time_zone="Europe/Berlin",
        state="final",
        currency="EUR",
        minor_nano=CENT,
        subtotal_minor=100,
        tax_minor=19,
        total_minor=119,
        credit_minor=100,
        due_minor=19,
        returned_nano=0,
        created_at_us=1_793_700_000_000_000,
        finalised_at_us=1_793_700_000_000_000,
        due_at_us=1_794_900_000_000_000,
        resolved_at_us=None,
    )
    return Invoice(
        row=row,
        issuer=Issuer("Betreiber <GmbH>", "Weg 1\n10115 Berlin", "DE1"),
        customer=Customer("Åkesson & Søn", "Gade 2", "", "USt", Decimal(19)),
        lines=(
            Line(
                "usage",
                "output",
                "complete/standard",
                "250000",
                "tokens",
                "0.000004",
                "2026-10",
                1_003_000_000,
                100,
            ),
            Line("usage", "input", "", "-20", "tokens", "0.000001", "2026-09", -20_000, 0),
            Line("tax", "USt", "19 %", "1", "charged", "0.19", "2026-10", 19 * CENT, 19),
            Line("credit", "credit", "", "1", "periods", None, "2026-10", -1_000_000_000, -100),
        ),
        payments=(Payment(9, "manual", 1_793_800_000_000_000),),
        credit_notes=(CreditNote("CN-000001", "goodwill", 1, 0, 1, 1_793_800_000_000_000),),
        remaining_minor=9,
    )


def test_the_json_adds_up_in_decimal_strings(invoice: Invoice) -> None:
    document = json.loads(json.dumps(documents.to_json(invoice)))
    lines = document["lines"]
    amounts = {
        kind: sum(Decimal(each["amount"]) for each in lines if each["kind"] == kind)
        for kind in ("usage", "tax", "credit")
    }
    assert amounts["usage"] == Decimal(document["subtotal"]) == 1
    assert amounts["usage"] + amounts["tax"] == Decimal(document["total"])
    assert Decimal(document["total"]) + amounts["credit"] == Decimal(document["due"])
    assert lines[0]["exact"] == "1.003"
    assert document["start"] == "2026-09-30T22:00:00.000000Z"
    assert document["end"] == "2026-10-31T23:00:00.000000Z"


def test_the_page_says_the_same_and_escapes_names(invoice: Invoice) -> None:
    page = documents.to_html(invoice)
    assert "Invoice INV-000007" in page
    assert "Betreiber &lt;GmbH&gt;" in page
    assert "Åkesson &amp; Søn" in page
    assert "2026-10-01 to 2026-10-31" in page
    assert "Input tokens, correction of 2026-09" in page
    for amount in ("1.00", "0.19", "1.19", "-1.00", "-0.09", "-0.01"):
        assert f">{amount}<" in page


def test_the_paper_is_the_same_bytes_for_the_same_invoice(invoice: Invoice) -> None:
    first = pdf.to_pdf(invoice)
    assert first.startswith(b"%PDF-")
    assert pdf.to_pdf(invoice) == first
    assert b"/Count 1" in first


def test_many_lines_take_more_pages(invoice: Invoice) -> None:
    long = dataclasses.replace(invoice, lines=invoice.lines[:1] * 80)
    assert b"/Count 1" not in pdf.to_pdf(long)


@pytest.mark.parametrize("party", ["issuer", "customer"])
def test_an_address_of_more_lines_than_a_page_takes_more_pages(
    invoice: Invoice, party: str
) -> None:
    name = "Firm of many desks"
    long = msgspec.structs.replace(getattr(invoice, party), name=name, address="a\n" * 499)
    paper = pdf.to_pdf(dataclasses.replace(invoice, **{party: long}))
    assert b"/Count 9" in paper


def test_a_preview_has_no_number_and_says_so(invoice: Invoice) -> None:
    row = dataclasses.replace(invoice.row, number=None, state="preview", finalised_at_us=None)
    assert wording.title(dataclasses.replace(invoice, row=row)) == "Invoice (preview)"
