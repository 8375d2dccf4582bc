"""`dflash payments push`, killed at random and run again: Stripe has everything once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from billing_world import add_tenant
from invoice_world import Month, at, priced
from sqlalchemy import Connection, update
from stripe_process import StripeProcess

from billing.invoices import closing
from billing.payments import collection, comparison, outbox
from billing.payments.tables import payment_outbox
from metering.database import snapshot, transaction

TENANTS = ("ten_1", "ten_2", "ten_3")
KILLS = {"sqlite": 1, "postgresql": 3}
POSTS_MAX = 4  # between two kills


def test_a_push_that_is_killed_and_run_again_tells_everything_once(
    month: Month, stripe: StripeProcess, tmp_path: Path
) -> None:
    issue(month)
    kind = month.database.dialect.name
    chance = random.Random(kind)
    endings = []
    for _ in range(KILLS[kind]):
        posts = stripe.state()["posts"] + chance.randint(1, POSTS_MAX)
        with push(month, stripe, tmp_path) as process:
            while process.poll() is None and stripe.state()["posts"] < posts:
                time.sleep(0.001)
            time.sleep(chance.choice([0, 0.002, 0.01]))  # after an answer, or before its note
            process.kill()
        endings.append(process.returncode)
    assert endings[0] == -signal.SIGKILL
    with push(month, stripe, tmp_path) as process:
        assert process.wait() == 0
    with snapshot(month.database) as connection:
        assert outbox.open_rows(connection) == []
    whole = len(TENANTS)
    assert stripe.counts() == {"customer": whole, "invoice": whole, "invoiceitem": whole}
    assert [each["status"] for each in stripe.objects("invoice")] == ["open"] * whole
    assert comparison.compare(month.database, stripe.provider).differences == []


def issue(month: Month) -> None:
    """An invoice over 4.00 of each tenant, all of it queued."""
    when = at("2026-11-10 12:00")
    with transaction(month.database) as connection:
        for tenant_id in TENANTS[1:]:
            add_tenant(connection, tenant_id, credit="1000", pays=priced())
            collection.enrol(connection, tenant_id, f"pay@{tenant_id}.example", "USD")
    for tenant_id in TENANTS:
        request_id = f"req_{tenant_id}"
        charged = month.serve(request_id, tenant_id, ended_us=when, tokens=999_995)
        month.on_account(request_id, tenant_id, charged, at_us=when)
    month.now_us = at("2026-12-04 00:00")

    def queue(connection: Connection, invoice_id: str) -> None:
        collection.collect(connection, invoice_id)

    assert len(list(closing.close(month.database, "2026-11", witness=queue))) == len(TENANTS)
    with transaction(month.database) as connection:
        # Whoever pushes has a clock of its own.
        connection.execute(update(payment_outbox).values(next_try_at_us=0))


def push(month: Month, stripe: StripeProcess, home: Path) -> subprocess.Popen[bytes]:
    settings = {
        "DFLASH_HOME": str(home),
        "DFLASH_DATABASE_URL": month.database.url.render_as_string(hide_password=False),
        "DFLASH_STRIPE_API_KEY": "sk_test_x",
        "DFLASH_STRIPE_API_BASE": stripe.url,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "dflash", "payments", "push"],
        env={**os.environ, **settings},
        stdout=subprocess.DEVNULL,
    )
