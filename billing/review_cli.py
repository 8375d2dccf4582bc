"""`dflash review`: the queue's standing, what reviewers are due, and what a tenant lets it cost."""

from __future__ import annotations

import click

from metering.cli_context import CliContext


@click.group()
def review() -> None:
    """Show the review queue, cap its cost, pay reviewers."""


@review.command()
@click.pass_obj
def status(context: CliContext) -> None:
    """Show what waits, for how long, and how far reviewers agree."""
    from billing.review_standing import standing
    from metering import clock

    with context.transaction() as connection:
        found = standing(connection, clock.now_us())
    agreement = found.agreement
    click.echo(f"waiting        {found.waiting}, {found.overdue} of them overdue")
    click.echo(f"age, median    {_minutes(found.age_us_median)}")
    click.echo(f"age, p95       {_minutes(found.age_us_p95)}")
    click.echo(f"second opinion {agreement.agreed} of {agreement.items} agree")
    kappa = "-" if agreement.kappa is None else f"{float(agreement.kappa):.4f}"
    click.echo(f"Cohen's kappa  {kappa}")


@review.command()
@click.pass_obj
def accounts(context: CliContext) -> None:
    """Show what every reviewer earned, was paid and is due."""
    from billing import reviewers
    from billing.money import format_nano

    with context.transaction() as connection:
        found = reviewers.listing(connection)
    for each in found:
        click.echo(
            f"{each.reviewer_id}: {format_nano(each.earned_nano)} {each.currency} earned, "
            f"{format_nano(each.paid_nano)} paid, {format_nano(each.due_nano)} due"
        )
    if not found:
        click.echo("no reviewer has earned a fee yet")


@review.command()
@click.argument("reviewer_id")
@click.argument("reference")
@click.option("--amount", help="Of what is due.  [default: all of it]")
@click.option("--currency", default="USD", show_default=True)
@click.pass_obj
def pay(
    context: CliContext, *, reviewer_id: str, reference: str, amount: str | None, currency: str
) -> None:
    """Book that a reviewer was paid; the same REFERENCE again books nothing."""
    from billing import reviewers
    from billing.money import format_nano, parse_nano

    with context.transaction() as connection:
        payout, is_news = reviewers.pay_out(
            connection,
            reviewer_id,
            currency,
            reference=reference,
            amount_nano=None if amount is None else parse_nano(amount),
        )
        if is_news:
            context.record(
                connection,
                action="review.paid_out",
                subject=reviewer_id,
                payout=payout.id,
                amount_nano=payout.amount_nano,
                currency=currency,
            )
    click.echo(f"{payout.id}: {format_nano(payout.amount_nano)} {currency} booked as paid")


@review.command()
@click.argument("tenant_id")
@click.option("--amount", help="In a calendar month of the tenant's time.  [default: no cap]")
@click.pass_obj
def cap(context: CliContext, *, tenant_id: str, amount: str | None) -> None:
    """Say what a tenant's reviews may cost it in a month."""
    from billing import review_caps
    from billing.ledger.balances import currency_of
    from billing.money import format_nano, parse_nano

    cap_nano = None if amount is None else parse_nano(amount)
    with context.transaction() as connection:
        currency = currency_of(connection, tenant_id)
        review_caps.limit(connection, tenant_id, cap_nano)
        context.record(
            connection,
            action="review_cap.changed",
            subject=tenant_id,
            tenant_id=tenant_id,
            cap=amount,
        )
    said = "no cap" if cap_nano is None else f"{format_nano(cap_nano)} {currency} a month"
    click.echo(f"{tenant_id}: {said}")


def _minutes(us: int | None) -> str:
    return "nothing waits" if us is None else f"{us / 60e6:.0f} min"
