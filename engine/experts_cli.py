"""`dflash experts`: which experts of a mixture are chosen how often, counted and kept with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from engine.dfm.catalogue import DEFAULT_MODEL, resolve
from engine.dfm.header import Header, Heat, read_header
from engine.errors import UnsupportedModel
from engine.generation_cli import engine_config, engine_options

SHARES = (0.125, 0.25, 0.5)  # of all experts, for which it is said what part of the rows they serve


@click.group("experts")
def experts() -> None:
    """Count which experts of a mixture are chosen how often."""


@experts.command("profile")
@engine_options
@click.option(
    "--prompts",
    required=True,
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help='One {"id", "prompt"} or {"id", "messages"} a line.',
)
@click.option("--max-new-tokens", type=click.IntRange(1), default=128, show_default=True)
@click.option("--concurrency", type=click.IntRange(1), default=8, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_obj
def profile(context: Any, /, **options: Any) -> None:
    """Answer prompts, and write how often each expert was chosen into the model's file.

    An engine that keeps fewer experts than there are begins with those chosen most. The model's
    checksum stays as it is: the map is no part of what it computes.
    """
    import msgspec

    from engine.completions import complete, failed
    from engine.dfm.container import write_heat
    from engine.opening import open_model
    from engine.prompts import read_prompts
    from engine.records import FinishReason
    from engine.requests import GenerationRequest

    path = resolve(context.home, options["model"])
    _check_mixture(path, read_header(path))
    # undrafted: a draft's rows may be of texts that never come to be
    model = open_model(path, engine_config(options, draft=False))
    requests = [
        GenerationRequest(
            request_id=prompt.id,
            tenant_id="local",
            prompt_ids=tuple(prompt.encoded(model.tokenizer)),
            max_tokens=options["max_new_tokens"],
        )
        for prompt in read_prompts(options["prompts"])
    ]
    loop = model.loop(msgspec.structs.replace(engine_config(options), draft=False))
    for completion in complete(loop, requests, concurrency=options["concurrency"]):
        if completion.finish_reason is FinishReason.ERROR:
            raise failed(completion)
    cache = model.decoder.experts
    assert cache is not None
    write_heat(path, tuple(map(tuple, cache.chosen.tolist())))
    _show(path, as_json=options["as_json"])


@experts.command("show")
@click.option("--model", default=DEFAULT_MODEL, show_default=True, help="A name or a path.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_obj
def show(context: Any, model: str, as_json: bool) -> None:
    """Show the map in a model's file, and what part of the rows the hottest experts serve."""
    _show(resolve(context.home, model), as_json=as_json)


def _check_mixture(path: Path, header: Header) -> None:
    if header.model.architecture.experts is None:
        raise UnsupportedModel(f"{path} is dense: it has no experts")


def _show(path: Path, *, as_json: bool) -> None:
    import msgspec

    header = read_header(path)
    _check_mixture(path, header)
    heat = header.expert_heat
    if heat is None:
        raise click.ClickException(f"{path} has no map yet: run `dflash experts profile`")
    served = _served(heat)
    if as_json:
        document = {"model": str(path), "heat": heat, "served": served}
        click.echo(msgspec.json.encode(document).decode())
        return
    for layer, counts in enumerate(heat):
        total = sum(counts) or 1
        hottest = sorted(range(len(counts)), key=lambda expert: -counts[expert])[:8]
        shown = "  ".join(f"{expert} ({counts[expert] / total:.0%})" for expert in hottest)
        click.echo(f"layer {layer:<3} {shown}")
    for size, share in served.items():
        click.echo(f"the {size} hottest of all layers serve {share:.0%} of what rows choose")


def _served(heat: Heat) -> dict[int, float]:
    """Return what part of all choices so many of the hottest experts take."""
    counts = sorted((count for layer in heat for count in layer), reverse=True)
    total = sum(counts) or 1
    sizes = dict.fromkeys(max(1, int(share * len(counts))) for share in SHARES)
    return {size: sum(counts[:size]) / total for size in sizes}
