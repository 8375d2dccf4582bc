"""`dflash meter`: what can be metered here, recorded, and what metering takes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metering.cli_context import CliContext
from metering.cli_types import FiniteRange

if TYPE_CHECKING:
    from metering.energy import EnergySettings

TOKENS_PER_S = 100  # of the engine against whose time the meter's is set

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def meter() -> None:
    """Show what can be metered here, record it, and measure what metering takes."""


@meter.command()
@click.option("--device", default="cpu", show_default=True, help='Or "cuda:0": the engine\'s.')
@as_json
@click.pass_obj
def sources(context: CliContext, *, device: str, as_json: bool) -> None:
    """Ask every source of energy, and show what each says, or why it doesn't."""
    from metering.energy.opening import FOR_CPU, FOR_GPU, open_named
    from metering.energy.provenance import together
    from metering.errors import SourceUnavailable

    settings = _settings(context)
    found: list[dict[str, Any]] = []
    for name in (*FOR_GPU, *FOR_CPU):
        try:
            opened = open_named(name, settings, os.getpid(), device)
        except SourceUnavailable as error:
            found.append({"source": name, "answers": False, "reason": str(error)})
            continue
        said = together(tuple(source.provenance for source in opened))
        for source in opened:
            source.close()
        found.append(
            {
                "source": name,
                "answers": True,
                "class": said.energy_class.value,
                "scope": said.scope,
                "devices": list(said.devices),
                "uncertainty_pct": said.uncertainty_pct,
            }
        )
    if as_json:
        click.echo(json.dumps(found))
        return
    for each in found:
        if each["answers"]:
            devices = ", ".join(each["devices"])
            click.echo(f"{each['source']:<11} {each['class']}, {each['scope']}: {devices}")
        else:
            click.echo(f"{each['source']:<11} - {each['reason']}")


@meter.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--seconds", type=FiniteRange(0.1, 86_400), default=60.0, show_default=True)
@click.option("--device", default="cpu", show_default=True, help='Or "cuda:0": the engine\'s.')
@click.option(
    "--pid",
    type=click.IntRange(min=1),
    help="Whose CPU time and devices are the engine's.  [default: this process]",
)
@click.pass_obj
def record(
    context: CliContext, *, file: Path, seconds: float, device: str, pid: int | None
) -> None:
    """Record what the configured source says into FILE, for the source `replay` to play."""
    from metering.energy import traces
    from metering.energy.opening import open_sources

    settings = _settings(context)
    opened = open_sources(settings, pid or os.getpid(), device)
    try:
        if len(opened) != 1:
            raise click.UsageError("one board at a time: name it by DFLASH_ENERGY__NVML_DEVICE")
        count = traces.record(opened[0], file, seconds, settings.sample_period_ms)
    finally:
        for source in opened:
            source.close()
    click.echo(f"{count} readings of {opened[0].provenance.device} in {file}")


@meter.command()
@click.option("--requests", type=click.IntRange(1, 256), default=4, show_default=True)
@click.option("--tokens", type=click.IntRange(10, 10**5), default=512, show_default=True)
@click.option("--block-tokens", type=click.IntRange(1, 16), default=2, show_default=True)
@click.option(
    "--batch-steps",
    type=click.IntRange(1, 256),
    default=5,
    show_default=True,
    help="Steps recorded at once: a gateway gathers those of a tenth of a second.",
)
@click.option("--repeats", type=click.IntRange(1, 100), default=5, show_default=True)
@click.option("--sampler-seconds", type=FiniteRange(0.1, 600), default=5.0, show_default=True)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the database for the measurement is made.  [default: a temporary folder]",
)
@as_json
@click.pass_obj
def bench(
    context: CliContext,
    *,
    requests: int,
    tokens: int,
    block_tokens: int,
    batch_steps: int,
    repeats: int,
    sampler_seconds: float,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Measure what metering takes: microseconds per token, and the sampler's part of a core.

    Shares are of an engine's time at 100 tokens a second. Writing durably is apart: it waits for
    the disk behind the next step.
    """
    from api.migrate import upgrade
    from metering.energy import open_meter
    from metering.overhead import Load, measure, sampler_share

    load = Load(requests, tokens, block_tokens, batch_steps, repeats)
    found = measure(upgrade, load, folder)
    energy = open_meter(_settings(context), os.getpid())
    share = sampler_share(energy, sampler_seconds)
    parts = {
        "segmenter": found.segmenter_us,
        "confidence": found.confidence_us,
        "recording": found.recording_us,
        "attribution": found.attribution_us,
        "the meter": found.meter_us,
        "durable write, apart": found.durable_us,
    }
    if as_json:
        figures = {
            "us_per_token": {name: round(value, 3) for name, value in parts.items()},
            "engine_share_pct": {name: round(_share(value), 4) for name, value in parts.items()},
            "sampler_core_pct": round(100 * share, 4),
            "sampler_source": energy.provenance.source,
        }
        click.echo(json.dumps(figures))
        return
    click.echo(f"{'':<22}{'us per token':>14}{f'of {TOKENS_PER_S} tokens/s':>20}")
    for name, value in parts.items():
        click.echo(f"{name:<22}{value:>14.2f}{_share(value):>18.3f} %")
    click.echo(f"the sampler ({energy.provenance.source}): {100 * share:.3f} % of one core")


def _share(microseconds: float) -> float:
    """The part of the engine's time, in per cent."""
    return 100 * microseconds * TOKENS_PER_S / 1e6


def _settings(context: CliContext) -> EnergySettings:
    from api.settings import Settings

    return Settings.read(home=context.home, database_url=context.database_url).energy_settings()
