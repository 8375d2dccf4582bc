"""`dflash calibrate`: learn what figures rest on, by measuring and from verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from metering.cli_context import CliContext
from metering.cli_types import FiniteRange
from metering.confidence_cli import confidence, labels

if TYPE_CHECKING:
    from api.settings import Settings
    from metering.energy import Calibration


@click.group()
def calibrate() -> None:
    """Fit what figures rest on to what was measured and judged here."""


calibrate.add_command(confidence)
calibrate.add_command(labels)


@calibrate.command()
@click.option("--model", help="A known model's name or a .dfm file.  [default: $DFLASH_MODEL]")
@click.option(
    "--seconds",
    type=FiniteRange(0.1, 600),
    default=5.0,
    show_default=True,
    help="How long each kind of work is kept up.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the calibration as JSON.")
@click.pass_obj
def energy(context: CliContext, *, model: str | None, seconds: float, as_json: bool) -> None:
    """Measure what a step, a prompt row, a tree node and a key read cost in joules.

    The engine is started as the settings say and kept at ten kinds of work; nothing else should
    run beside it. The costs are kept in a new versioned file under the home, and split the energy
    of this model, on this device, at this precision, from the gateway's next start on.
    """
    from api.settings import Settings
    from metering.energy import calibration

    settings = Settings.read(home=context.home, database_url=context.database_url, model=model)
    fitted = _measure(settings, seconds)
    path = calibration.store(settings.home, fitted)
    if as_json:
        click.echo(fitted.text)
        return
    costs = fitted.costs
    for name, cost_nj in (
        ("a step", costs.fixed),
        ("a prompt row", costs.prefill_token),
        ("a tree node", costs.verified_node),
        ("a key read", costs.kv_read),
    ):
        click.echo(f"{name:<14} {cost_nj / 1e6:>14,.6f} mJ")
    click.echo(f"{'fit misses':<14} {fitted.error_pct:>14} %")
    meter = fitted.meter
    click.echo(f"metered by {meter.source}, {meter.energy_class.value}, of {meter.device}")
    click.echo(f"kept as {path}: {fitted.id}")


def _measure(settings: Settings, seconds: float) -> Calibration:
    from engine.dfm.catalogue import resolve
    from engine.process import EngineProcess
    from metering import clock
    from metering.energy import calibration, open_meter_of
    from metering.energy.experiments import EXPERIMENTS, Laboratory, StepLog
    from metering.errors import SourceUnavailable

    log, config = StepLog(), settings.engine_config()
    engine = EngineProcess(resolve(settings.home, settings.model), config, log)
    engine.start()
    try:
        info = engine.info
        meter = open_meter_of(info, settings.energy_settings())
        if not meter.available:
            raise SourceUnavailable("no source of energy answers here: `dflash meter sources`")
        meter.start()
        try:
            laboratory = Laboratory(engine.submit, log, meter, info, config.kv_tokens)
            observed = []
            for experiment in EXPERIMENTS:
                click.echo(f"{experiment.name} ...", err=True)
                observed.append(laboratory.observe(experiment, seconds))
        finally:
            meter.close()
    finally:
        engine.close()
    subject = calibration.Subject.of(info)
    return calibration.fit(
        observed,
        subject,
        meter.provenance,
        version=calibration.next_version(settings.home, subject),
        fitted_at_us=clock.now_us(),
    )
