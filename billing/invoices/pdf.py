"""An invoice on paper: A4, as many pages as its lines need, the same bytes for the same invoice.

The fonts are those that the library ships, so nothing depends on the machine. They hold the letters
of Western European languages; what else a name is written in, be it only a Czech or Polish letter,
shows as boxes here, and rightly in HTML and JSON.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any
from xml.sax.saxutils import escape

from reportlab.lib import colors
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import Paragraph, SimpleDocTemplate, Spacer, Table, TableStyle

from billing.invoices import wording
from billing.invoices.parties import Customer, Issuer
from billing.invoices.queries import Invoice

FONT, BOLD = "Vera", "VeraBd"
MARGIN = 18 * mm
WIDTHS = (86 * mm, 40 * mm, 22 * mm, 26 * mm)
GREY = colors.HexColor("#5b636e")
RULE = colors.HexColor("#dfe3e8")
TEXT = ParagraphStyle("text", fontName=FONT, fontSize=8.5, leading=11.5)
SMALL = ParagraphStyle("small", parent=TEXT, fontSize=7.5, leading=10, textColor=GREY)
TITLE = ParagraphStyle("title", parent=TEXT, fontName=BOLD, fontSize=17, leading=21)
RIGHT = ParagraphStyle("right", parent=TEXT, alignment=2)
RIGHT_BOLD = ParagraphStyle("right_bold", parent=RIGHT, fontName=BOLD)
STRONG = ParagraphStyle("strong", parent=TEXT, fontName=BOLD)


def to_pdf(invoice: Invoice) -> bytes:
    """The invoice as a PDF file."""
    for name in (FONT, BOLD):
        if name not in pdfmetrics.getRegisteredFontNames():
            pdfmetrics.registerFont(TTFont(name, f"{name}.ttf"))
    target = BytesIO()
    document = SimpleDocTemplate(
        target,
        pagesize=A4,
        leftMargin=MARGIN,
        rightMargin=MARGIN,
        topMargin=MARGIN,
        bottomMargin=MARGIN,
        title=wording.title(invoice),
        author=invoice.issuer.name,
        invariant=1,
    )
    document.build(
        [
            Paragraph(escape(wording.title(invoice)), TITLE),
            Spacer(1, 6 * mm),
            _parties(invoice),
            Spacer(1, 6 * mm),
            _dates(invoice),
            Spacer(1, 5 * mm),
            _lines(invoice),
            Spacer(1, 6 * mm),
            Paragraph(
                escape(
                    f"Times in {invoice.row.time_zone}. Amounts are rounded once, for the total; "
                    "the lines are fitted to it, so that they add up."
                ),
                SMALL,
            ),
        ],
        onFirstPage=_page_number,
        onLaterPages=_page_number,
    )
    return target.getvalue()


def _parties(invoice: Invoice) -> Table:
    cells = [
        [_party("From", invoice.issuer), _party("To", invoice.customer)],
    ]
    # An address may have more lines than a page.
    style = [("VALIGN", (0, 0), (-1, -1), "TOP")]
    return Table(cells, colWidths=[87 * mm, 87 * mm], style=style, splitInRow=1)


def _party(label: str, party: Issuer | Customer) -> list[Paragraph]:
    lines = [line for line in (*party.address.splitlines(), party.tax_id) if line]
    return [
        Paragraph(label, SMALL),
        Paragraph(escape(party.name), STRONG),
        *(Paragraph(escape(line), TEXT) for line in lines),
    ]


def _dates(invoice: Invoice) -> Table:
    row = invoice.row
    facts = (
        ("Period", wording.period(invoice)),
        ("Issued", wording.day(row.finalised_at_us, row.time_zone)),
        ("Due", wording.day(row.due_at_us, row.time_zone) if row.due_minor else "–"),
        ("State", row.state),
    )
    cells = [
        [Paragraph(name, SMALL) for name, _ in facts],
        [Paragraph(escape(value), TEXT) for _, value in facts],
    ]
    return Table(cells, colWidths=[66 * mm, 36 * mm, 36 * mm, 36 * mm])


def _lines(invoice: Invoice) -> Table:
    row = invoice.row
    head = ("Description", "Quantity", "Unit price", f"Amount {row.currency}")
    cells: list[list[Any]] = [
        [Paragraph(text, STRONG if place == 0 else RIGHT_BOLD) for place, text in enumerate(head)]
    ]
    for line in invoice.lines:
        if line.kind in ("tax", "credit"):
            continue
        cells.append(
            [
                Paragraph(escape(wording.description(line, invoice)), TEXT),
                Paragraph(escape(wording.quantity(line)), RIGHT),
                Paragraph(line.unit_price or "–", RIGHT),
                Paragraph(wording.amount(invoice, line.amount_minor), RIGHT),
            ]
        )
    first_sum = len(cells)
    for name, minor, strong in _sums(invoice):
        styles = (STRONG, RIGHT_BOLD) if strong else (TEXT, RIGHT)
        amount = Paragraph(wording.amount(invoice, minor), styles[1])
        cells.append([Paragraph(escape(name), styles[0]), "", "", amount])
    style = TableStyle(
        [
            ("VALIGN", (0, 0), (-1, -1), "TOP"),
            ("LINEBELOW", (0, 0), (-1, 0), 1, colors.black),
            ("LINEBELOW", (0, 1), (-1, -1), 0.4, RULE),
            ("LEFTPADDING", (0, 0), (0, -1), 0),
            ("RIGHTPADDING", (-1, 0), (-1, -1), 0),
            *(("SPAN", (0, place), (2, place)) for place in range(first_sum, len(cells))),
        ]
    )
    return Table(cells, colWidths=WIDTHS, repeatRows=1, style=style)


def _sums(invoice: Invoice) -> list[tuple[str, int, bool]]:
    row = invoice.row
    summary = {
        kind: [
            (wording.description(line, invoice), line.amount_minor, False)
            for line in invoice.lines
            if line.kind == kind
        ]
        for kind in ("tax", "credit")
    }
    return [
        ("Subtotal", row.subtotal_minor, False),
        *summary["tax"],
        ("Total", row.total_minor, False),
        *summary["credit"],
        ("To pay", row.due_minor, True),
        *(
            (
                f"Payment of {wording.day(payment.paid_at_us, row.time_zone)} ({payment.method})",
                -payment.amount_minor,
                False,
            )
            for payment in invoice.payments
        ),
        *(
            (f"Credit note {note.number}: {note.reason}", -note.amount_minor, False)
            for note in invoice.credit_notes
        ),
    ]


def _page_number(canvas: Canvas, _document: SimpleDocTemplate) -> None:
    canvas.setFont(FONT, 7.5)
    canvas.setFillColor(GREY)
    canvas.drawRightString(A4[0] - MARGIN, 10 * mm, f"Page {canvas.getPageNumber()}")
