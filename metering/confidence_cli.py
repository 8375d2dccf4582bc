"""`dflash calibrate confidence` and `labels`: learn from verdicts what a score is worth."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from metering.cli_context import CliContext
from metering.cli_types import FiniteRange

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from metering.calibration.reports import KindReport, Report


@click.command()
@click.option("--model", help="The model whose labels to use.  [default: the only one]")
@click.option("--checksum", help="Its file's checksum.  [default: the only one]")
@click.option("--judge", default="reviewers", show_default=True, help="Whose verdicts to use.")
@click.option(
    "--error",
    type=FiniteRange(0, 1, min_open=True, max_open=True),
    default=0.05,
    show_default=True,
    help="How much of what is relied on may be wrong.",
)
@click.option(
    "--confidence",
    type=FiniteRange(0.5, 1, min_open=True, max_open=True),
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
    judge: str,
    error: float,
    confidence: float,
    guard: bool,
    plot: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Fit scores to verdicts, by model and kind of unit, and put the curves in force.

    One judge's verdicts: what a test calls right is not what a reviewer does. A kind with fewer
    labels than could promise anything stays uncalibrated; where all do, nothing is put in force and
    the exit status is 1. A running gateway takes a new calibration up by itself; requests admitted
    before keep theirs.
    """
    import msgspec

    from metering import calibration
    from metering.calibration.fitting import fit

    with context.snapshot() as connection:
        name, file_checksum = _chosen(connection, model, checksum, judge)
        report = fit(
            name,
            file_checksum,
            calibration.labels(connection, name, file_checksum, judge),
            error=error,
            confidence=confidence,
            guard=guard,
            revision=calibration.revision(connection, name, file_checksum),
            judge=judge,
        )
    document = msgspec.json.encode(report)
    if plot is not None and report.curves:
        from metering.calibration.plot import reliability_svg

        # Before anything is in force: whoever can't have the plot has not asked for the rest alone.
        plot.write_text(reliability_svg(report))
    stored = False
    if report.curves and not dry_run:
        with context.transaction() as connection:
            stored = calibration.store(connection, report.calibration(), document)
            if stored:
                context.record(
                    connection,
                    action="calibration.stored",
                    subject=report.id,
                    model=name,
                    judge=judge,
                    kinds=sorted(report.curves),
                    review_below=report.review_below,
                )
    click.echo(document.decode() if as_json else _told(report, stored=stored, dry_run=dry_run))
    if not report.curves:
        raise click.exceptions.Exit(1)


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option("--judge", required=True, help="What judged, say humaneval-tests.")
@click.option("--dry-run", is_flag=True, help="Check every line, and keep none.")
@click.option("--json", "as_json", is_flag=True, help="The counts as JSON.")
@click.pass_obj
def labels(
    context: CliContext, *, file: BinaryIO, judge: str, dry_run: bool, as_json: bool
) -> None:
    """Take in verdicts that no reviewer gave: a test run's, an evaluation's.

    FILE (`-` for standard input) has a JSON object on each line: `request_id`, `verdict` (`approve`
    or `reject`), and if need be `unit` (its index), `group` (the question, where the same one was
    asked several times) and `output_sha256` (of the receipt whose text was judged). All lines are
    kept or, where one is wrong, none; those that are there already are left alone.
    """
    import json

    from metering.calibration import verdicts

    data = file.read()
    with context.snapshot() as connection:
        found = verdicts.read(connection, data.splitlines(), judge)
    added = 0
    if found and not dry_run:
        with context.transaction() as connection:
            added = verdicts.keep(connection, found)
            if added:
                context.record(
                    connection,
                    action="calibration.labelled",
                    subject=judge,
                    labels=added,
                    file_sha256=hashlib.sha256(data).hexdigest(),
                )
    counts = {
        "judge": judge,
        "verdicts": len(found),
        "right": sum(label.correct for label in found),
        "requests": len({label.request_id for label in found}),
        "independent": len({label.errs_with for label in found}),
        "added": added,
    }
    if as_json:
        click.echo(json.dumps(counts))
        return
    click.echo(
        f"{judge}: {counts['verdicts']} verdicts on {counts['requests']} answers to "
        f"{counts['independent']} questions, {counts['right']} right; "
        + ("a dry run, none kept" if dry_run else f"{added} new")
    )


def _chosen(
    connection: Connection, model: str | None, checksum: str | None, judge: str
) -> tuple[str, str]:
    from metering import calibration

    labelled = [
        (name, own, by)
        for name, own, by in calibration.labelled_models(connection)
        if model in {None, name} and checksum in {None, own}
    ]
    found = [(name, own) for name, own, by in labelled if by == judge]
    if not found:
        of = f" of {model}" if model else ""
        by = f" by {judge}" if judge != calibration.REVIEWERS else ""
        others = sorted({each for _, _, each in labelled})
        instead = f"; there are verdicts of --judge {', '.join(others)}" if others else ""
        raise click.ClickException(
            f"uncalibrated: no answer{of} has been reviewed{by} yet{instead}"
        )
    if len(found) > 1:
        listed = "; ".join(f"--model {name} --checksum {own}" for name, own in found)
        raise click.UsageError(f"there are labels of several model files: {listed}")
    return found[0]


def _told(report: Report, *, stored: bool, dry_run: bool) -> str:
    lines = [f"{report.model} ({report.model_checksum}), judged by {report.judge}"]
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
