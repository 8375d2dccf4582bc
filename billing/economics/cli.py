"""`dflash economics`: what serving costs the operator, and whether another fleet would pay."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import IO, TYPE_CHECKING, Any

import click

from metering.cli_context import CliContext
from metering.cli_types import CURRENCY
from metering.wording import counted

if TYPE_CHECKING:
    from billing.economics.costs import Economics

DAY_US = 86_400 * 10**6
DAYS = 30
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class _Rate(click.ParamType[Decimal]):
    name = "decimal"

    def convert(self, value: Any, param: Any, ctx: Any) -> Decimal:
        """Read a price; click says what is wrong with another text."""
        from billing.errors import InvalidAmount
        from billing.money import NANO, parse_nano

        try:
            nano = parse_nano(value)
        except InvalidAmount as error:
            self.fail(str(error), param, ctx)
        if nano < 0:
            self.fail("a price is not negative", param, ctx)
        return Decimal(nano) / NANO


def _rates(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--days", type=click.IntRange(1, 3650), help=f"[default: {DAYS}]"),
        click.option(
            "--currency", type=CURRENCY, default="USD", show_default=True, help="Of both rates."
        ),
        click.option("--per-kwh", type=_Rate(), help="What a kilowatt hour costs."),
        click.option(
            "--per-hour", type=_Rate(), required=True, help="The machine an hour, power apart."
        ),
    ):
        command = option(command)
    return command


@click.group("economics")
def economics() -> None:
    """Estimate what serving costs, from measured steps and the rates that you state."""


@economics.command("costs")
@_rates
@as_json
@click.pass_obj
def show_costs(context: CliContext, /, *, as_json: bool, **rates: Any) -> None:
    """Fit the cost floor to the steps on record, and say what requests cost by concurrency."""
    found = _economics(context, **rates)
    if as_json:
        click.echo(json.dumps(_plain(found, "levels", "fit", "no_fit", "usual", "points")))
        return
    for level in found.levels:
        click.echo(
            f"{level.concurrency:>5} at once: {level.step_ms:.3f} ms a step, "
            f"{level.tokens_per_step:.2f} tokens, {counted(level.steps, 'steps')} in "
            f"{counted(level.runs, 'runs')}"
        )
    if found.fit is None:
        click.echo(f"no fit: {found.no_fit}")
    else:
        block, alpha = found.fit.block_ms, found.fit.alpha
        click.echo(
            f"fit: {block.value:.3f} ms a block ({block.low:.3f} to {block.high:.3f}), "
            f"alpha {alpha.value:.3f} ({alpha.low:.3f} to {alpha.high:.3f}), "
            f"R2 {_shown(found.fit.r_squared, 3)}"
        )
    if found.usual is None:
        click.echo("no request with output ended in these days: nothing is known of requests")
    for point in found.points:
        per_joule = "".join(
            f", {_shown(each)} a joule ({kind})" for kind, each in point.per_joule.items()
        )
        click.echo(
            f"{point.concurrency:>5} at once: {_shown(point.per_request)} {found.rates.currency} "
            f"a request, {_shown(point.per_unit)} a unit{per_joule}"
            f"{' (extrapolated)' if point.is_extrapolated else ''}"
        )


@economics.command("margins")
@_rates
@click.option(
    "--period", metavar="YYYY-MM", help="Each tenant's month, its prices included, not days."
)
@as_json
@click.pass_obj
def show_margins(
    context: CliContext, /, *, period: str | None, as_json: bool, **rates: Any
) -> None:
    """Say what each tenant was charged beside what its requests took of machine and energy."""
    from billing.money import format_nano

    if period is not None and rates["days"] is not None:
        raise click.UsageError("--period and --days are two ways to say of which time")
    found = _economics(context, period=period, **rates)
    if as_json:
        click.echo(json.dumps(_plain(found, "period", "margins")))
        return
    for each in found.margins:
        month = each.month_prices_nano
        of_month = f" ({format_nano(month)} of them prices of the month)" if month else ""
        click.echo(
            f"{each.tenant_id} ({each.name}): charged {format_nano(each.charged_nano)} "
            f"{each.currency}{of_month}, machine {_shown(each.machine_cost)}, energy "
            f"{_shown(each.energy_cost)}, margin {_shown(each.margin)}, "
            f"{counted(each.requests, 'requests')}"
            f"{f', {each.unmetered} without joules' if each.unmetered else ''}"
        )


@economics.command("roi")
@click.argument("file", type=click.File("rb"))
@as_json
def compare_fleets(*, file: IO[bytes], as_json: bool) -> None:
    """Compare two fleets by the figures in FILE (YAML or JSON, decimals quoted)."""
    from billing.economics import roi
    from billing.errors import InvalidEconomics, InvalidTariff
    from billing.tariff_documents import load

    try:
        question = roi.parse(load(file.read()))
    except (InvalidEconomics, InvalidTariff) as error:
        raise click.ClickException(
            "\n  ".join(("these figures can't be reckoned with:", *error.errors))
        ) from None
    found = roi.to_wire(roi.answer(question))
    if as_json:
        click.echo(json.dumps(found))
        return
    for name in ("before", "after"):
        year: Mapping[str, str] = found[name]
        click.echo(
            f"{name}: {year['total']} a year (machines {year['machines']}, electricity "
            f"{year['electricity']}, people {year['people']}), {year['iterations']} iterations"
        )
    click.echo(f"saving: {found['saving']} a year, {found['net']} net over the years")
    months = found["payback_months"]
    click.echo("never paid back" if months is None else f"paid back after {months} months")


def _economics(
    context: CliContext,
    *,
    days: int | None,
    currency: str,
    period: str | None = None,
    **rates: Any,
) -> Economics:
    from billing.economics import costs
    from billing.economics.margins import Rates
    from metering import clock

    now = clock.now_us()
    with context.snapshot() as connection:
        stated = Rates(currency, **rates)
        return costs.economics(connection, stated, now - (days or DAYS) * DAY_US, now, period)


def _plain(found: Economics, *names: str) -> dict[str, Any]:
    import msgspec

    fields = msgspec.to_builtins(found)
    return {name: fields[name] for name in ("rates", *names)}


def _shown(value: float | None, places: int = 9) -> str:
    return "unknown" if value is None else f"{value:.{places}f}"
