"""Have the FinOps Foundation's `focus-validator` look at our FOCUS files, CSV and Parquet.

Run by `make focus`, which makes the validator's own environment: it wants Python 3.12 and older
libraries than ours. The rule set is the one that the validator ships; nothing is downloaded.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT)]

import pytest  # noqa: E402
from focus_cases import focus_rows  # noqa: E402
from golden_month import bill, golden_month  # noqa: E402
from invoice_world import at  # noqa: E402
from sqlalchemy import Engine  # noqa: E402

from api import migrate  # noqa: E402
from billing.exports import files  # noqa: E402
from billing.exports.columns import COLUMNS, Row  # noqa: E402
from billing.exports.parquet import to_parquet  # noqa: E402
from metering.database import open_database  # noqa: E402

RULES = "1.2.0.1"
# The two halves of "null, or else not null": of every column, one is not met.
EITHER = ({"InvoiceId-C-004-C"}, {"InvoiceId-C-005-C"})
LABELS = ("2026-09", "2026-10", "2026-11")  # the second tenant's last is still open
# What a provider may say that it supports: columns of the rest must be absent.
SUPPORTED = (
    "ACCOUNT_NAMING_SUPPORTED",
    "NEGOTIATED_PRICING_SUPPORTED",
    "PUBLIC_PRICE_LIST_SUPPORTED",
    "SUB_ACCOUNT_SUPPORTED",
    "TAGGING_SUPPORTED",
    "UNIT_PRICING_SUPPORTED",
    "USAGE_MEASUREMENT_SUPPORTED",
)
MONTHS = [(tenant, month) for tenant in ("ten_berlin", "ten_york") for month in LABELS]


def main(validator: Path) -> int:
    """Write the golden month's files and validate each; 1 where a rule is not met."""
    with tempfile.TemporaryDirectory(prefix="dflash-focus-") as temporary:
        folder = Path(temporary)
        url = f"sqlite:///{folder / 'gateway.db'}"
        migrate.upgrade(url)
        database = open_database(url)
        with pytest.MonkeyPatch.context() as patch:
            month = golden_month(database, folder, patch)
            bill(month)
            month.serve("req_open", "ten_york", ended_us=at("2026-11-20 00:00"), tokens=500)
        rows = all_rows(database)
        database.dispose()
        # It reads "null or not" as a rule of the whole column: one file must not have both.
        billed = [row for row in rows if row.get("InvoiceId")]
        rest = [row for row in rows if not row.get("InvoiceId")]
        failed = 0
        for part, chosen in (("billed", billed), ("unbilled", rest)):
            for kind, write in (("csv", files.to_csv), ("parquet", to_parquet)):
                path = folder / f"{part}.{kind}"
                path.write_bytes(b"".join(write(COLUMNS, chosen)))
                failed += validate(validator, path)
    print(f"{len(rows)} rows by focus-validator in 4 files: {4 - failed} passed, {failed} failed")
    return min(failed, 1)


def all_rows(database: Engine) -> list[Row]:
    return [row for tenant, label in MONTHS for row in focus_rows(database, tenant, label)]


def validate(validator: Path, path: Path) -> bool:
    """Whether a file fails; what fails in it is printed."""
    (site,) = validator.parent.parent.glob("lib/python3.*/site-packages")
    command = [validator, "--data-file", path, "--validate-version", RULES, "--block-download"]
    command += ["--rule-set-path", site / "focus_validator" / "rules"]
    command += ["--focus-dataset", "CostAndUsage", "--show-violations"]
    command += ["--applicability-criteria", ",".join(SUPPORTED)]
    done = subprocess.run(command, cwd=site, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    unmet = set(re.findall(r"^\S+ (\S+): FAIL\b", said, re.MULTILINE))
    met = re.findall(r"^Total: \d+ \| Pass: (\d+)", said, re.MULTILINE)
    passed = done.returncode == 0 and len(met) == 1 and unmet in EITHER
    print(f"{path.name}: {met[0] if met else 'no'} rules met, not met: {sorted(unmet)}")
    if not passed:
        print(f"{path.name}:\n{said}")
    return not passed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute()))
