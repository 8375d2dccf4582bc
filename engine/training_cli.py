"""`dflash train-head`: a draft head for any model, from nothing but the model itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine.dfm.catalogue import DEFAULT_MODEL, resolve

if TYPE_CHECKING:
    from engine.training.evaluation import Evaluation


@click.command("train-head")
@click.option("--model", default=DEFAULT_MODEL, show_default=True, help="A name or a path.")
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="HEAD",
    help="A folder; what is in it already is gone on with.",
)
@click.option(
    "--tokens",
    type=click.IntRange(1),
    default=1_000_000,
    show_default=True,
    help="Of the model's own responses.",
)
@click.option(
    "--hours",
    type=click.FloatRange(0.0),
    default=2.0,
    show_default=True,
    help="Of processor time spent on fitting, all runs together; with 0, phrases are all.",
)
@click.option(
    "--groups",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Slice the head by so many of the model's key-value heads.",
)
@click.option(
    "--layers",
    type=click.IntRange(0, 4),
    default=1,
    show_default=True,
    help="Of the head.",
)
@click.option(
    "--window",
    type=click.IntRange(0, 512),
    default=0,
    show_default=True,
    help="Tokens that its layers attend to; without any, they see the last two.",
)
@click.option(
    "--slots",
    type=click.IntRange(1, 8),
    default=3,
    show_default=True,
    help="Tokens ahead that it proposes.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--threads", type=click.IntRange(1), help="One per core, if not given.")
@click.option("--prompts", type=click.IntRange(1), default=48, show_default=True)
@click.pass_obj
def train_head(context: Any, /, **options: Any) -> None:
    """Train a draft head on the model's own answers. Stop it at any time; run it again to go on."""
    from engine.training.pipeline import Orders, train

    orders = Orders(
        tokens=options["tokens"],
        hours=options["hours"],
        groups=options["groups"],
        layers=options["layers"],
        window=options["window"],
        slots=options["slots"],
        seed=options["seed"],
        threads=options["threads"],
        evaluated_prompts=options["prompts"],
    )
    path = resolve(context.home, options["model"])
    evaluation = train(path, options["out"], orders, lambda line: click.echo(line, err=True))
    _show(evaluation)
    if not evaluation.identical:
        raise click.ClickException("the arms did not emit the same tokens")


def _show(evaluation: Evaluation) -> None:
    click.echo(
        f"{evaluation.prompts} held-out prompts; emitted tokens per step, by nodes of a tree:"
    )
    click.echo("  arm       nodes  length  depth  accepted/node  reliability error  by depth")
    for arm in evaluation.arms:
        error = "-" if arm.reliability_error is None else f"{arm.reliability_error:.3f}"
        depths = " ".join(f"{share:.2f}" for share in arm.acceptance_by_depth)
        click.echo(
            f"  {arm.arm:<9} {arm.node_budget:>5}  {arm.mean_accepted_length:6.2f} "
            f"{arm.mean_drafted_depth:6.2f}  {arm.node_efficiency:13.2f}  {error:>17}  {depths}"
        )
