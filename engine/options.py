"""Command-line options that set up an engine, for every command that runs one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from engine.config import DEGRADE_POLICIES, PROFILES, SHIPPED_PROFILE, EngineConfig

CommandT = TypeVar("CommandT", bound=Callable[..., None])

_DEFAULTS = EngineConfig()
PARAMETERS = (
    "draft_block_size",
    "verifier_batch_size",
    "entropy_threshold",
    "node_budget",
    "draft_head",
    "degrade_policy",
    "rope_scaling_factor",
    "expert_cache_size",
    "use_flash_attn2",
    "longest_token_length",
)


def engine_parameters(command: CommandT) -> CommandT:
    """Add `--profile` and the options of docs/parameters.md; those not given are null."""
    options = (
        click.option(
            "--profile",
            type=click.Choice(list(PROFILES)),
            help=f"What the next three, and experts, are unless given.  [{SHIPPED_PROFILE}]",
        ),
        click.option("--draft-block-size", type=int, help="Depths proposed ahead, at most."),
        click.option(
            "--verifier-batch-size",
            type=int,
            help="Full drafts that share a verification.",
        ),
        click.option("--entropy-threshold", type=float, help="Nats; above it, redraft wider."),
        click.option(
            "--node-budget",
            type=int,
            help=f"Candidates of a request, the last token among them.  [{_DEFAULTS.node_budget}]",
        ),
        click.option(
            "--draft-head",
            metavar="[auto|none|FILE]",
            help="The model's own, if one is shipped; none; or a head file.  [default: auto]",
        ),
        click.option(
            "--degrade-policy",
            type=click.Choice(DEGRADE_POLICIES),
            help=f"When drafting turns itself off.  [default: {_DEFAULTS.degrade_policy}]",
        ),
        click.option(
            "--rope-scaling-factor", type=float, help="Multiplies positions.  [default: 1.0]"
        ),
        click.option(
            "--expert-cache-size",
            type=int,
            help="Experts kept prepared, where there are some; 0: all.",
        ),
        click.option(
            "--use-flash-attn2",
            is_flag=False,
            flag_value="verifier",
            metavar="[verifier]",
            help="Flash attention, in the verifier only; refused where it can't be.",
        ),
        click.option(
            "--longest-token-length", type=int, help="Checked against the model's context."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def given_parameters(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that the command line gave, by their configuration's names."""
    return {name: options[name] for name in PARAMETERS if options[name] is not None}
