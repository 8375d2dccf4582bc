"""`dflash receipt`, with `audit`: the one command of it that needs a model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from billing.receipts_cli import receipt
from metering.cli_context import CliContext
from metering.cli_types import COUNT_MAX
from metering.wording import counted

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from billing.receipt_audit import Audit

__all__ = ["receipt"]


@receipt.command("audit")
@click.argument("receipts", nargs=-1)
@click.option(
    "--last", type=click.IntRange(1, COUNT_MAX), help="The last so many final requests as well."
)
@click.option("--tenant", "tenant_id", help="Only requests of this tenant.")
@click.option(
    "--model",
    help="Name or path of the model.  [default: $DFLASH_MODEL where it is the receipt's by name or "
    "checksum; else the one that the receipt names]",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per receipt.")
@click.pass_context
def audit_receipts(ctx: click.Context, /, as_json: bool, **options: Any) -> None:
    """Check a bill by generating its answer again, alone and undrafted.

    RECEIPTS are request ids, or files with a signed receipt. The prompt is the stored one. Tokens,
    log-probabilities, text, units, confidence, bits and every line are compared. The exit status is
    1 if anything differs, or if a receipt could not be audited; the others are, all the same. With
    --json an object says of such a one why: its request_id, or the name given, a code and a reason.
    """
    from api import tenants
    from api.auditor import Auditor
    from api.errors import NotFound
    from billing.errors import CannotAudit, InvalidReceipt
    from engine.errors import EngineError

    receipts, last, tenant_id = options["receipts"], options["last"], options["tenant_id"]
    if not receipts and last is None:
        raise click.UsageError("say which: request ids, receipt files, or --last N")
    failed = False
    with ctx.obj.snapshot() as connection:
        if tenant_id is not None:
            tenants.require(connection, tenant_id)
        auditor = Auditor(connection, ctx.obj.home, options["model"])
        wanted = dict.fromkeys([*receipts, *_latest(connection, last, tenant_id)])
        if not wanted:
            click.echo("nothing to audit: no receipt whose content is kept", err=True)
        audited: set[str] = set()
        for named in wanted:
            try:
                request_id = _request_id(connection, named, auditor.keys)
                if request_id in audited:
                    continue
                audited.add(request_id)
                audit = auditor.audit(request_id, tenant_id)
            except (NotFound, CannotAudit, InvalidReceipt, EngineError) as error:
                _explain(named, error, as_json)
                failed = True
                continue
            _show(audit, as_json)
            failed = failed or bool(audit.differences)
    if failed:
        ctx.exit(1)


@receipt.command("rotate-key")
@click.pass_obj
def rotate_key(context: CliContext) -> None:
    """Sign with a new key from now on. The gateway must be stopped.

    Receipts that the old key signed stay verifiable, here and at `/receipt-keys`: its public part
    is kept, marked as retired. Its private part is destroyed.
    """
    from api.tenure import Tenure
    from billing.receipts_cli import KEY_FILE
    from billing.signing import Signer
    from metering.database import transaction

    with context.database() as database:
        tenure = Tenure(database)
        try:
            tenure.take()  # a gateway that went on signing with the old key would be disbelieved
            before = Signer.open(context.home / KEY_FILE)
            with transaction(database) as connection:
                before.register(connection)
                after = Signer.replace(context.home / KEY_FILE, connection)
                context.record(
                    connection, action="receipt_key.rotated", subject=after.kid, retired=before.kid
                )
        finally:
            tenure.release()
    click.echo(f"{after.kid} signs from now on; {before.kid} is retired")


def _request_id(connection: Connection, named: str, keys: Any) -> str:
    """The request that is named, by itself or by a file with a receipt that holds.

    Raises InvalidReceipt where the file proves nothing, CannotAudit where it was not issued here.
    """
    from billing import receipts as stored
    from billing.errors import CannotAudit, InvalidReceipt, ReceiptFault
    from billing.verification import compare_answer, verify

    if not (path := Path(named)).is_file():
        return named
    try:
        envelope = json.loads(path.read_bytes())
        is_answer = isinstance(envelope, dict) and "signature" not in envelope
        verified = verify(envelope.get("receipt") if is_answer else envelope, keys)
        if is_answer:
            compare_answer(envelope)
    except (ValueError, AttributeError, RecursionError, OSError) as error:
        raise InvalidReceipt(ReceiptFault.MALFORMED, f"no receipt: {error}") from error
    kept = stored.receipt(connection, None, verified.request_id)
    if kept is None or kept["sha256"] != verified.sha256:
        raise CannotAudit(f"{named} is not the receipt that was issued here")
    return verified.request_id


def _explain(named: str, error: Exception, as_json: bool) -> None:
    """Say why a receipt was not audited."""
    from billing.errors import InvalidReceipt

    reason = f"{error.reason}: {error}" if isinstance(error, InvalidReceipt) else str(error)
    if as_json:
        from api.problems import problem_of

        said = {"request_id": named, "code": problem_of(error).code, "reason": reason}
        click.echo(json.dumps(said))
    click.echo(f"{named}: not audited: {reason}", err=True)


def _latest(connection: Connection, last: int | None, tenant_id: str | None) -> Iterator[str]:
    """The last final requests whose content is kept, newest first."""
    if last is None:
        return
    from sqlalchemy import select

    from billing.tables import receipts
    from metering.tables import requests

    query = (
        select(requests.c.id)
        .join(receipts, receipts.c.request_id == requests.c.id)
        .where(requests.c.prompt.is_not(None))
        .order_by(requests.c.ended_at_us.desc(), requests.c.id.desc())
        .limit(last)
    )
    if tenant_id is not None:
        query = query.where(requests.c.tenant_id == tenant_id)
    yield from connection.scalars(query)


def _show(audit: Audit, as_json: bool) -> None:
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(audit).decode())
        return
    for difference in audit.differences:
        click.echo(
            f"{audit.request_id}: {difference.check}: expected {difference.expected}, "
            f"stated {difference.actual}"
        )
    how = "to the last digit" if audit.exact else f"within {audit.tolerance_unats / 1e6:g} nats"
    click.echo(
        f"{audit.request_id}: {counted(len(audit.differences), 'differences')} in "
        f"{counted(audit.tokens, 'tokens')}, "
        f"compared {how}; taken as stated: {', '.join(audit.taken_as_stated)}"
    )
