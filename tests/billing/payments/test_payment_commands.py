"""What `dflash payments` says of a command that changes nothing."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner
from invoice_world import Month

from billing.payments.cli import payments
from metering.cli_context import CliContext


def test_a_tenant_is_told_to_one_address_and_a_measure_to_one_meter(
    month: Month, tmp_path: Path
) -> None:
    url = month.database.url.render_as_string(hide_password=False)
    written: list[str] = []
    context = CliContext(tmp_path, url, record=lambda _, **entry: written.append(entry["action"]))

    def run(*words: str) -> tuple[int, str]:
        found = CliRunner().invoke(payments, list(words), obj=context)
        return found.exit_code, found.output.strip()

    assert run("enrol", "ten_1", "pay@acme.example") == (0, "ten_1 pays through the provider")
    assert run("enrol", "ten_1", "other@acme.example") == (
        1,
        "Error: ten_1 pays through the provider already: pay@acme.example",
    )
    for _ in range(2):
        assert run("meter", "ten_1", "requests", "one") == (
            0,
            "one is told the requests of ten_1",
        )
    assert run("meter", "ten_1", "requests", "other") == (
        1,
        "Error: one is told the requests of ten_1 already",
    )
    assert written == ["payments.metered"]
