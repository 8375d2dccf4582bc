"""`dflash doctor`: run every check, print what was found and what to do."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
import msgspec

from api.doctor import host, software, state
from api.doctor.findings import Finding, Level
from api.settings import Settings

MARKS = {Level.OK: ("ok", "green"), Level.WARN: ("warn", "yellow"), Level.FAIL: ("FAIL", "red")}


def examine(settings: Settings) -> list[Finding]:
    """Run every check. Changes nothing; reads the whole model file."""
    config = settings.engine_config()
    gpu_count, nvml = host.nvml()
    header, model = state.model(settings.home, settings.model)
    return [
        software.python_version(),
        software.packages(),
        software.kernels(config.device, config.backend),
        software.cuda(gpu_count, config.device),
        host.min_free_kbytes(gpu_count),
        nvml,
        host.rapl(),
        host.threads(config.threads),
        host.memory(header.data_bytes if header else 0),
        host.disk(settings.home),
        model,
        state.context_length(config, header),
        state.database(settings.resolved_database_url),
        state.signing_key(settings.home / "keys" / "receipt_ed25519.pem"),
    ]


def report(findings: Sequence[Finding]) -> str:
    """Lay the findings out: one line each, the advice under what needs it."""
    lines = []
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        word, colour = MARKS[finding.level]
        mark = click.style(f"{word:>4}", fg=colour, bold=finding.level is not Level.OK)
        lines.append(f"{mark}  {finding.check:<{width}}  {finding.found}")
        if finding.advice:
            lines.append(f"{'':>{width + 8}}-> {finding.advice}")
    return "\n".join(lines)


@click.command()
@click.option("--model", help="Name or path of the model to check.  [default: $DFLASH_MODEL]")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.pass_context
def doctor(ctx: click.Context, model: str | None, as_json: bool) -> None:
    """Check what otherwise fails silently, and say what to do.

    Exits 1 when a check fails; warnings alone exit 0.
    """
    findings = examine(
        Settings.read(home=ctx.obj.home, database_url=ctx.obj.database_url, model=model or None)
    )
    if as_json:
        click.echo(msgspec.json.encode(findings).decode())
    else:
        click.echo(report(findings))
    if any(finding.level is Level.FAIL for finding in findings):
        sys.exit(1)
