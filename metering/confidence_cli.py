"""`dflash calibrate confidence`: learn from reviewers what a score is worth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from metering.cli_context import CliContext

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from metering.calibration.reports import KindReport, Report


@click.command()
@click.option("--model", help="The model whose labels to use.  [default: the only one]")
@click.option("--checksum", help="Its file's checksum.  [default: the only one]")
@click.option(
    "--error",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.05,
    show_default=True,
    help="How much of what is relied on may be wrong.",
)
@click.option(
    "--confidence",
    type=click.FloatRange(0.5, 1, min_open=True, max_open=True),
    default=0.95,
    show_default=True,
    help="How sure that is to be.",
)
@click.option(
    "--guard",
    is_flag=True,
    help="Send answers to review that score below what is guaranteed.",
)
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write the reliability plot."
)
@click.option("--dry-run", is_flag=True, help="Fit and report, and put nothing in force.")
@click.option("--json", "as_json", is_flag=True, help="The whole report.")
@click.pass_obj
def confidence(
    context: CliContext,
    *,
    model: str | None,
    checksum: str | None,
    error: float,
    confidence: float,
    guard: bool,
    plot: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Fit scores to reviewers' verdicts, by model and kind of unit, and put the curves in force.

    A kind with fewer labels than could promise anything stays uncalibrated; where all do, nothing
    is put in force and the exit status is 1. A running gateway takes a new calibration up by
    itself; requests admitted before keep theirs.
    """
    import msgspec

    from metering import calibration
    from metering.calibration.fitting import fit

    with context.transaction() as connection:
        name, file_checksum = _chosen(connection, model, checksum)
        report = fit(
            name,
            file_checksum,
            calibration.labels(connection, name, file_checksum),
            error=error,
            confidence=confidence,
            guard=guard,
            revision=calibration.revision(connection, name, file_checksum),
        )
        document = msgspec.json.encode(report)
        stored = False
        if report.curves and not dry_run:
            stored = calibration.store(connection, report.calibration(), document)
            if stored:
                context.record(
                    connection,
                    action="calibration.stored",
                    subject=report.id,
                    model=name,
                    kinds=sorted(report.curves),
                    review_below=report.review_below,
                )
    if plot is not None and report.curves:
        from metering.calibration.plot import reliability_svg

        plot.write_text(reliability_svg(report))
    click.echo(document.decode() if as_json else _told(report, stored=stored, dry_run=dry_run))
    if not report.curves:
        raise click.exceptions.Exit(1)


def _chosen(connection: Connection, model: str | None, checksum: str | None) -> tuple[str, str]:
    from metering import calibration

    found = [
        (name, own)
        for name, own in calibration.labelled_models(connection)
        if model in {None, name} and checksum in {None, own}
    ]
    if not found:
        of = f" of {model}" if model else ""
        raise click.ClickException(f"uncalibrated: no answer{of} has been reviewed yet")
    if len(found) > 1:
        listed = "; ".join(f"--model {name} --checksum {own}" for name, own in found)
        raise click.UsageError(f"there are labels of several model files: {listed}")
    return found[0]


def _told(report: Report, *, stored: bool, dry_run: bool) -> str:
    lines = [f"{report.model} ({report.model_checksum})"]
    for kind in report.kinds:
        lines += _kind(kind)
    if not report.curves:
        lines.append("uncalibrated: nothing was put in force")
    elif dry_run:
        lines.append(f"{report.id} was not put in force: this was a dry run")
    elif stored:
        lines.append(f"{report.id} is in force")
    else:
        lines.append("the calibration in force says the same already")
    if report.review_below is not None:
        lines.append(f"answers that score below {report.review_below} go to review")
    return "\n".join(lines)


def _kind(kind: KindReport) -> list[str]:
    if kind.curve is None:
        return [f"  {kind.kind}: uncalibrated, {kind.reason}"]
    assert kind.raw is not None
    assert kind.calibrated is not None
    lines = [
        f"  {kind.kind}: {kind.labels} labels of {kind.requests} answers, "
        f"{kind.sampled} of them sampled; {kind.right:.4f} right"
    ]
    for name, each in (("raw", kind.raw), ("calibrated", kind.calibrated)):
        area = "none" if each.auroc is None else f"{each.auroc:.4f}"
        lines.append(
            f"    {name:<10} ECE {each.ece:.4f}  Brier {each.brier:.4f}  AUROC {area}  "
            f"coverage {each.coverage:.4f}"
        )
    promise = kind.guarantee
    if promise is None:
        lines.append("    no threshold holds at this error and confidence")
    else:
        lines.append(
            f"    at or above {promise.threshold}: {promise.errors} of {promise.accepted} wrong, "
            f"at most {promise.bound:.4f} at confidence {promise.confidence:g}; "
            f"{promise.coverage:.4f} of answers"
        )
    return lines
