"""What earlier payments settled and gave is read from the ledger, also what nobody had noted."""

from __future__ import annotations

from sqlalchemy import text

from api import migrate
from metering.database import open_database, snapshot, transaction

INVOICE = "inv_01a22ced9fb77209b2eaaf194e6219fa"
TENANT = (
    "INSERT INTO tenants (id, name, currency, time_zone, review_opt_in, review_delivery, suspended,"
    " created_at_us) VALUES ('t', 'T', 'EUR', 'UTC', false, 'now', false, 1)"
)
INVOICED = (
    "INSERT INTO invoices (id, tenant_id, period, kind, currency, minor_nano, start_us, end_us,"
    " time_zone, state, number, subtotal_minor, tax_minor, total_minor, credit_minor, due_minor,"
    " charges_nano, returned_nano, issuer, customer, created_at_us, finalised_at_us, due_at_us)"
    f" VALUES ('{INVOICE}', 't', '2026-11', 'period', 'EUR', 10, 0, 1, 'UTC', 'final', 'I-1', 100,"
    " 0, 100, 0, 100, 1000, 0, '{}', '{}', 1, 1, 1)"
)
ACCOUNTS = {
    "op:cash": ("NULL", "cash"),
    "op:clearing": ("NULL", "payment_clearing"),
    "t:receivable": ("'t'", "receivable"),
    "t:credit": ("'t'", "tenant_credit"),
    "t:lost": ("'t'", "write_off"),
}
ACCOUNT = (
    "INSERT INTO accounts (id, tenant_id, kind, currency, debits_nano, credits_nano)"
    " VALUES ('{id}', {tenant}, '{kind}', 'EUR', 0, 0)"
)
# What came and went, and what was noted of it: of the second disputed payment only what had been
# paid, of the third nothing.
MOVED = (
    ("wire", "manual", 130, [("settled", "op:cash", "t:receivable", 1000)]),
    ("wire", None, 0, [("surplus", "op:cash", "t:credit", 300)]),
    ("d1", "stripe", -60, [("surplus", "t:credit", "op:clearing", 205)]),
    ("d1", None, 0, [("lost", "t:lost", "op:clearing", 95)]),
    ("d1", None, 0, [("settled", "t:receivable", "op:clearing", 300)]),
    ("d2", "stripe", -70, [("settled", "t:receivable", "op:clearing", 700)]),
    ("d2", None, 0, [("lost", "t:lost", "op:clearing", 200)]),
    ("d3", None, 0, [("lost", "t:lost", "op:clearing", 50)]),
)
TRANSFER = (
    "INSERT INTO transfers (id, transaction_id, debit_account_id, credit_account_id, amount_nano,"
    " currency, kind, event_time_us, booked_at_us)"
    " VALUES ('{cause}/{part}', '{cause}', '{debit}', '{credit}', {nano}, 'EUR', 'payment', 7, 7)"
)
EXPECTED = [
    ("d1", -60, -30, -205, "stripe", 5),
    ("d2", -90, -70, 0, "stripe", 5),
    ("d3", -5, 0, 0, "stripe", 7),
    ("wire", 130, 100, 300, "manual", 5),
]


def test_what_was_paid_before_is_as_the_ledger_has_it(blank_database_url: str) -> None:
    migrate.upgrade(blank_database_url, "evidence")
    database = open_database(blank_database_url)
    with transaction(database) as connection:
        connection.execute(text(TENANT))
        connection.execute(text(INVOICED))
        for name, (tenant, kind) in ACCOUNTS.items():
            connection.execute(text(escaped(ACCOUNT.format(id=name, tenant=tenant, kind=kind))))
        for cause, method, noted, moves in MOVED:
            payment = f"payment/{INVOICE}/{cause}"
            for part, debit, credit, nano in moves:
                booked = {"part": part, "debit": debit, "credit": credit, "nano": nano}
                connection.execute(text(escaped(TRANSFER.format(cause=payment, **booked))))
            if method is not None:
                connection.execute(
                    text(
                        "INSERT INTO invoice_payments (id, invoice_id, amount_minor, method,"
                        " paid_at_us) VALUES (:id, :invoice, :minor, :method, 5)"
                    ),
                    {"id": payment, "invoice": INVOICE, "minor": noted, "method": method},
                )
    migrate.upgrade(blank_database_url, "standings")
    with snapshot(database) as connection:
        rows = connection.execute(
            text(
                "SELECT id, amount_minor, settled_minor, credited_nano, method, paid_at_us"
                " FROM invoice_payments ORDER BY id"
            )
        ).all()
    assert [(row[0].rpartition("/")[2], *row[1:]) for row in rows] == EXPECTED
    migrate.downgrade(blank_database_url, "evidence")
    with snapshot(database) as connection:
        kept = connection.execute(text("SELECT id, amount_minor FROM invoice_payments ORDER BY id"))
        assert [(row[0].rpartition("/")[2], row[1]) for row in kept] == [
            each[:2] for each in EXPECTED
        ]
    database.dispose()


def escaped(statement: str) -> str:
    """Colons of ids are no parameters."""
    return statement.replace(":", r"\:")
