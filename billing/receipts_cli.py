"""`dflash receipt`: show a receipt, and check one offline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Any

import click

from metering.cli_context import CliContext

KEY_FILE = Path("keys") / "receipt_ed25519.pem"


@click.group()
def receipt() -> None:
    """Show a receipt, verify it offline, or audit it by replay."""


@receipt.command("show")
@click.argument("request_id")
@click.pass_obj
def show_receipt(context: CliContext, request_id: str) -> None:
    """Print a request's signed receipt and its adjustments as JSON."""
    from billing import receipts

    with context.snapshot() as connection:
        envelope = receipts.receipt(connection, None, request_id)
        adjustments = receipts.adjustments(connection, request_id)
    if envelope is None:
        raise click.ClickException(f"no receipt of {request_id}")
    click.echo(json.dumps({**envelope, "adjustments": adjustments}, indent=2, ensure_ascii=False))


@receipt.command("keys")
@click.pass_obj
def show_keys(context: CliContext) -> None:
    """Print every public key that ever signed a receipt here, as a JSON Web Key Set."""
    click.echo(json.dumps(_local_keys(context), indent=2))


@receipt.command("verify")
@click.argument("file", type=click.File("rb"))
@click.option(
    "--keys",
    "key_file",
    type=click.File("rb"),
    help="JSON Web Key Set, as `/receipt-keys` gives it.  [default: this installation's]",
)
@click.pass_obj
def verify_receipt(context: CliContext, file: IO[bytes], key_file: IO[bytes] | None) -> None:
    """Check a receipt's signature, hash and sum. Needs no network; exit status 0 if they hold.

    FILE is the signed receipt, or the whole answer that it came with; then the answer's text, id,
    cost, counts, joules and confidence must be those of the receipt, too.
    """
    from billing.errors import InvalidReceipt, ReceiptFault
    from billing.money import format_nano
    from billing.receipt_documents import iso
    from billing.verification import compare_answer, verify, verify_adjustment

    answer = _load_json(file)
    keys = _local_keys(context) if key_file is None else _load_json(key_file)
    is_answer = isinstance(answer, dict) and "signature" not in answer
    unchecked: tuple[str, ...] = ()
    try:
        verified = verify(answer.get("receipt") if is_answer else answer, keys)
        if is_answer:
            unchecked = compare_answer(answer)
        given_back = 0
        adjustments = answer.get("adjustments")
        if not isinstance(adjustments, list | None):
            raise InvalidReceipt(ReceiptFault.MALFORMED, "adjustments must be a list")
        for signed in adjustments or []:
            adjustment = verify_adjustment(signed, keys)
            if adjustment.receipt_sha256 != verified.sha256:
                raise InvalidReceipt(
                    ReceiptFault.WRONG_HASH, f"{adjustment.adjustment_id} cites another receipt"
                )
            given_back += adjustment.amount_nano
    except InvalidReceipt as error:
        raise click.ClickException(f"{error.reason}: {error}") from None
    test = ", test mode" if verified.test_mode else ""
    click.echo(
        f"valid: {verified.request_id}, {format_nano(verified.total_nano)} {verified.currency}"
        f"{test}, issued {iso(verified.issued_at_us)}, signed by {verified.kid}"
    )
    if not is_answer:
        click.echo(f"the text itself was not checked: {file.name} holds the receipt alone")
    elif unchecked:
        click.echo(f"not checked, as {file.name} leaves it out: {', '.join(unchecked)}")
    if adjustments:
        net = format_nano(verified.total_nano + given_back)
        click.echo(f"adjusted: {format_nano(given_back)}, so {net} {verified.currency}")


def _load_json(file: IO[bytes]) -> Any:
    try:
        return json.loads(file.read())
    except RecursionError:
        raise click.ClickException(f"malformed: {file.name} is nested too deeply") from None
    except ValueError as error:  # not UTF-8, not JSON, or a number beyond all bounds
        raise click.ClickException(f"malformed: {file.name} is not JSON: {error}") from None


def _local_keys(context: CliContext) -> dict[str, Any]:
    """The keys published in the database, or else the current one, without making any."""
    from sqlalchemy.engine import make_url

    from billing.signing import Signer, public_keys

    url = make_url(context.database_url)
    if url.drivername != "sqlite" or (url.database and Path(url.database).exists()):
        with context.snapshot() as connection:
            if (published := public_keys(connection))["keys"]:
                return published
    key_file = context.home / KEY_FILE
    if not key_file.exists():
        raise click.ClickException("no keys here: give those of the issuer with --keys FILE")
    return Signer.open(key_file).key_set()
