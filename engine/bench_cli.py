"""`dflash bench`: how fast, beside what, and how near to what the machine can do."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from engine.bench.peers import PEERS
from engine.bench.variants import NAMED, OURS, arm_name, chosen_variants
from engine.dfm.catalogue import models_folder, resolve
from engine.generation_cli import engine_config, engine_options
from engine.prompts import TASKS

if TYPE_CHECKING:
    from rich.console import Console

    from engine.bench.comparison import Arm, Cell
    from engine.bench.records import Ask, Run, Setup
    from engine.bench.workers import Worker
    from engine.config import EngineConfig

NAME = "dflash"  # of our arm
DEFAULT_VARIANTS = "verifier-only,restart"
FILE = click.Path(dir_okay=False, path_type=Path)
EXISTING = click.Path(dir_okay=False, exists=True, path_type=Path)


@click.command("bench")
@engine_options
@click.option(
    "--task",
    type=click.Choice([*TASKS]),
    help="Prompts that come with the package; code-gen, if nothing is said.",
)
@click.option(
    "--prompts",
    "files",
    type=FILE,
    multiple=True,
    help="Instead of --task: JSON Lines, HumanEval's and Spec-Bench's too. May be repeated.",
)
@click.option("--chat", is_flag=True, help="Put raw prompts into the model's chat template.")
@click.option("--limit", type=click.IntRange(1), help="Prompts of each category; all, by default.")
@click.option("--concurrency", default="1,8", show_default=True, help="Comma-separated.")
@click.option(
    "--by-category",
    default="1",
    show_default=True,
    help="The concurrencies at which each category runs alone; at others they are mixed.",
)
@click.option(
    "--waves",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Prompts of a mixture for each place: with more than one, only full batches count.",
)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option(
    "--within",
    type=click.FloatRange(0.0),
    metavar="SECONDS",
    help="Begin no further round after so long.",
)
@click.option("--max-new-tokens", type=click.IntRange(1), default=64, show_default=True)
@click.option("--temperature", type=click.FloatRange(0.0), default=0.0, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--peers", default="", help=f"Comma-separated, of: {', '.join(PEERS)}.")
@click.option(
    "--gguf", type=EXISTING, help="The peers' weights; a known model's are fetched by themselves."
)
@click.option(
    "--variants",
    help=f"Of ours, comma-separated, of: {', '.join(NAMED)}; "
    f"{DEFAULT_VARIANTS}, if there are no peers. NAME=FILE is one that drafts with a head file.",
)
@click.option(
    "--perplexity-tokens",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Score every engine on so many tokens of the prompts.",
)
@click.option("--json", "output", type=FILE, metavar="OUT")
@click.option(
    "--chart", type=FILE, metavar="OUT", help="Written as its extension says; .svg, .png."
)
@click.option(
    "--duration",
    type=click.FloatRange(0.0),
    metavar="SECONDS",
    help="A stress run instead: full load for so long, then a verdict.",
)
@click.option("--roofline", is_flag=True, help="Measure the machine and a step's parts instead.")
@click.pass_obj
def bench(context: Any, /, **options: Any) -> None:
    """Measure decoding: beside variants and peers, under stress, or against the machine.

    A comparison has every arm answer the same prompts in turn, in rounds, and shows medians.
    """
    if options["task"] is not None and options["files"]:
        raise click.UsageError("--task and --prompts exclude each other")
    if options["roofline"] and options["duration"] is not None:
        raise click.UsageError("--roofline and --duration exclude each other")
    concurrencies = _numbers(options["concurrency"], "--concurrency")
    path = resolve(context.home, options["model"])
    if options["roofline"]:
        _roofline(path, options)
    elif options["duration"] is not None:
        if options["peers"] or options["variants"]:
            raise click.UsageError("--duration measures ours alone: no --peers, no --variants")
        _stress(path, concurrencies, options)
    else:
        _compare(context.home, path, concurrencies, options)


def _compare(home: Path, path: Path, concurrencies: list[int], options: dict[str, Any]) -> None:
    from engine.bench.comparison import cells_of, compared, play
    from engine.bench.machine import OthersLoad, machine
    from engine.bench.report import draw, show
    from engine.bench.workers import Worker

    peers = _names(options["peers"], PEERS, "--peers")
    chosen = options["variants"]
    if chosen is None:
        chosen = "" if peers else DEFAULT_VARIANTS
    try:
        variants = chosen_variants(chosen, (NAME, *PEERS))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--variants") from None
    by_category = _numbers(options["by_category"], "--by-category")
    asks = _asks(path, options)
    cells = cells_of(asks, concurrencies, by_category, options["waves"])
    config = _roomy(
        engine_config(options, max_running=max(concurrencies)), cells, options["max_new_tokens"]
    )
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(Worker(name, setup))
            for name, setup in _setups(home, path, config, peers, options).items()
        }
        load = OthersLoad()
        played = play(
            _arms(workers, variants, peers),
            cells,
            rounds=options["rounds"],
            max_tokens=options["max_new_tokens"],
            temperature=options["temperature"],
            seed=options["seed"],
            within_s=options["within"],
            progress=_said,
        )
        others = load.share()
        perplexities = _perplexities(workers, asks, options["perplexity_tokens"])
        details = {name: worker.details for name, worker in workers.items()}
        opening_ms = {name: worker.opening_ms for name, worker in workers.items()}
    comparison = compared(played, greedy=options["temperature"] == 0.0)
    show(comparison, _console())
    for name, facts in details.items():
        click.echo(f"{name}: " + ", ".join(f"{fact} {value}" for fact, value in facts.items()))
    click.echo(f"others kept the processors {others:.0%} busy meanwhile")
    for name, value in perplexities.items():
        click.echo(f"{name}: perplexity {value:.4f}")
    if options["chart"] is not None:
        draw(comparison, options["chart"])
    if options["output"] is not None:
        document = {
            **msgspec.structs.asdict(comparison),
            "perplexity": perplexities,
            "opening_ms": opening_ms,
            "engines": details,
            "machine": machine(),
            "others_load": others,
            "settings": _settings(options, config, cells),
        }
        _write(options["output"], document)
    if not comparison.identical:
        raise click.ClickException("the arms of ours did not emit the same tokens")


def _stress(path: Path, concurrencies: list[int], options: dict[str, Any]) -> None:
    from engine.bench.stress import JITTER_MAX, stress
    from engine.opening import open_model

    config = engine_config(options, max_running=max(concurrencies))
    model = open_model(path, config)
    verdicts = {}
    for concurrency in concurrencies:
        verdict = stress(
            model,
            config,
            _asks(path, options),
            concurrency=concurrency,
            duration_s=options["duration"] / len(concurrencies),
            max_tokens=options["max_new_tokens"],
        )
        verdicts[str(concurrency)] = verdict
        jitter = "none to tell" if verdict.jitter is None else f"{verdict.jitter:.1f}"
        click.echo(
            f"concurrency {concurrency}: {verdict.requests} requests, {verdict.tokens} tokens in "
            f"{verdict.seconds:.1f} s, {verdict.tokens_per_s:.1f} tokens/s\n"
            f"  errors   {verdict.errors}\n"
            f"  garbled  {verdict.garbled} ({verdict.not_utf8} are not UTF-8, as the model says)\n"
            f"  jitter   {jitter} (p99 to median of the time between blocks, "
            f"{JITTER_MAX:.0f} at most)\n"
            f"  verdict  {'passed' if verdict.passed else 'FAILED'}"
        )
        for fault in verdict.faults:
            click.echo(f"  {fault}")
    if options["output"] is not None:
        passed = all(verdict.passed for verdict in verdicts.values())
        document = {"passed": passed, "stress": verdicts, "engine": model.info, "config": config}
        _write(options["output"], document)
    if not all(verdict.passed for verdict in verdicts.values()):
        raise click.ClickException("the stress run failed")


def _roofline(path: Path, options: dict[str, Any]) -> None:
    from engine.bench.machine import machine
    from engine.bench.report import show_roofline
    from engine.bench.roofline import roofline

    found = roofline(path, threads=options["threads"] or _cores())
    show_roofline(found, _console())
    if options["output"] is not None:
        _write(options["output"], {"machine": machine(), "roofline": found})


def _asks(path: Path, options: dict[str, Any]) -> list[Ask]:
    """Return the chosen prompts as token ids, by category."""
    from engine.bench.records import Ask
    from engine.prompts import read_prompts, selected, task_prompts
    from engine.tokenizer import Tokenizer

    prompts = [prompt for file in options["files"] for prompt in read_prompts(file)]
    prompts = prompts or task_prompts(options["task"] or "code-gen")
    if options["chat"]:
        prompts = [prompt.asked() for prompt in prompts]
    tokenizer = Tokenizer.from_dfm(path)
    asks = [
        Ask(prompt.id, category, tuple(prompt.encoded(tokenizer)))
        for category, group in selected(prompts, options["limit"]).items()
        for prompt in group
    ]
    if len({ask.id for ask in asks}) < len(asks):
        raise click.UsageError("two prompts have the same id")
    return asks


def _roomy(config: EngineConfig, cells: Sequence[Cell], max_new_tokens: int) -> EngineConfig:
    """Give the engine room for the longest prompts that may run at once, if it has too little."""
    needed = 0
    for cell in cells:
        lengths = sorted((len(ask.prompt_ids) for ask in cell.asks), reverse=True)
        at_once = lengths[: cell.concurrency]
        needed = max(needed, sum(length + max_new_tokens + 32 for length in at_once))
    return msgspec.structs.replace(config, kv_tokens=max(config.kv_tokens, needed))


def _setups(
    home: Path,
    path: Path,
    config: EngineConfig,
    peers: Sequence[str],
    options: dict[str, Any],
) -> dict[str, Setup]:
    """Say which engines take part, each in a process of its own; ours first."""
    from engine.bench.peers import gguf_of, requantised
    from engine.bench.records import Setup
    from engine.dfm.header import read_header

    header = read_header(path)
    threads, eos_ids = options["threads"] or _cores(), header.tokens.eos_ids
    setups = {NAME: Setup("dflash", str(path), threads, eos_ids, config)}
    if peers:
        gguf = options["gguf"] or gguf_of(header, home, _fetching)
    for name in peers:
        peer = PEERS[name]
        source = gguf.resolve()
        if peer.quantisation:
            source = requantised(source, peer.quantisation, models_folder(home), threads)
        setups[_engine_of(name)] = Setup(peer.kind, str(source), threads, eos_ids)
    return setups


def _arms(workers: dict[str, Worker], variants: Sequence[str], peers: Sequence[str]) -> list[Arm]:
    from engine.bench.comparison import Arm

    ours = workers[NAME]
    arms = [Arm(NAME, ours, OURS, own=True)]
    arms += [Arm(arm_name(variant), ours, variant, own=True) for variant in variants]
    for name in peers:
        peer = PEERS[name]
        arms.append(
            Arm(name, workers[_engine_of(name)], peer.variant, concurrency_max=peer.concurrency_max)
        )
    return arms


def _engine_of(peer: str) -> str:
    """A peer's variants share the process of the one they are a variant of."""
    return peer.partition("+")[0]


def _perplexities(workers: dict[str, Worker], asks: Sequence[Ask], tokens: int) -> dict[str, float]:
    """Score every engine on the beginning of all prompts, one after the other as one text."""
    from engine.bench.records import Windows
    from engine.perplexity.windows import STRIDE, WINDOW, perplexity, windows

    text = [token for ask in asks for token in ask.prompt_ids][:tokens]
    if len(text) < 2:
        return {}
    cut, firsts = windows(text, WINDOW, STRIDE)
    asked = Windows(tuple(cut), tuple(firsts))
    scored = {name: worker.score(asked) for name, worker in workers.items()}
    return {
        name: perplexity(found.negative_log_likelihood, found.tokens)
        for name, found in scored.items()
    }


def _settings(
    options: dict[str, Any], config: EngineConfig, cells: Sequence[Cell]
) -> dict[str, Any]:
    names = ("limit", "max_new_tokens", "temperature", "seed", "perplexity_tokens")
    return {
        **{name: options[name] for name in names},
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "config": config,
        "cells": [
            {
                "concurrency": cell.concurrency,
                "category": cell.category,
                "prompts": [ask.id for ask in cell.asks],
                "prompt_tokens": sum(len(ask.prompt_ids) for ask in cell.asks),
            }
            for cell in cells
        ],
    }


def _said(arm: str, cell: Cell, number: int, run: Run) -> None:
    from engine.bench.statistics import decode_rate

    rate = decode_rate([run])
    shown = "no decode step" if rate is None else f"{rate:.1f} tokens/s"
    where = cell.category or "mixed"
    click.echo(
        f"round {number + 1}, concurrency {cell.concurrency}, {where}, {arm}: {shown}", err=True
    )


def _fetching(stage: str, _done: int, _total: int | None) -> None:
    click.echo(stage, err=True)


def _names(text: str, known: Sequence[str] | dict[str, Any], option: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise click.BadParameter(
            f"{', '.join(unknown)}: there is {', '.join(known)}", param_hint=option
        )
    return names


def _numbers(text: str, option: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise click.BadParameter("numbers from 1 on, comma-separated", param_hint=option)
    return list(dict.fromkeys(found))


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _console() -> Console:
    """Return a console that is wide enough for the tables where its width is anybody's guess."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=160)


def _write(path: Path, document: dict[str, Any]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document)))
