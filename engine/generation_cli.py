"""`dflash generate` and `dflash bench`: decoding from the command line, without a gateway."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from engine.config import ROLLBACK_POLICIES, SHIPPED_PROFILE, EngineConfig
from engine.dfm.catalogue import DEFAULT_MODEL, resolve
from engine.errors import EngineError
from engine.options import engine_parameters, given_parameters
from engine.requests import GenerationRequest, SamplingParams

if TYPE_CHECKING:
    from engine.benchmark import ConcurrencyResult
    from engine.completions import Completion
    from engine.prompts import Prompt
    from engine.tokenizer import Tokenizer

_DEFAULTS = EngineConfig()


def _engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that set up the model and the draft layer."""
    options = (
        click.option("--model", default=DEFAULT_MODEL, show_default=True, help="A name or a path."),
        click.option("--backend", default=_DEFAULTS.backend, show_default=True),
        click.option("--device", default=_DEFAULTS.device, show_default=True),
        click.option("--threads", type=click.IntRange(1), help="One per core, if not given."),
        click.option("--kv-tokens", type=int, default=_DEFAULTS.kv_tokens, show_default=True),
        engine_parameters,
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command("generate")
@_engine_options
@click.option("--prompt", help="Raw text to continue.")
@click.option(
    "--prompts",
    type=click.Path(dir_okay=False, path_type=Path),
    help='One {"id", "prompt"} or {"id", "messages"} a line.',
)
@click.option("--chat", is_flag=True, help="Put --prompt into the model's chat template.")
@click.option("--max-new-tokens", type=int, default=128, show_default=True)
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-k", type=int)
@click.option("--top-p", type=float, default=1.0, show_default=True)
@click.option("--min-p", type=float, default=0.0, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--stop", multiple=True, help="End where this string begins; may be repeated.")
@click.option("--draft/--no-draft", default=True, show_default=True)
@click.option("--rollback", type=click.Choice(ROLLBACK_POLICIES), default=_DEFAULTS.rollback)
@click.option("--concurrency", type=click.IntRange(1), default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.pass_obj
def generate(context: Any, /, **options: Any) -> None:
    """Continue one prompt, or every prompt of a file, and say how fast."""
    from engine.completions import complete, failed
    from engine.opening import open_model
    from engine.records import FinishReason

    prompts = _prompts(options)
    config = _config(options, draft=options["draft"], rollback=options["rollback"])
    model = open_model(resolve(context.home, options["model"]), config)
    requests = [_request(prompt, model.tokenizer, options) for prompt in prompts]
    for prompt, request in zip(prompts, requests, strict=True):
        try:
            model.limits.check(request)
        except EngineError as error:
            raise click.ClickException(f"{prompt.id}: {error}") from error
    began = time.perf_counter()
    loop = model.loop(config)
    done = complete(loop, requests, concurrency=options["concurrency"])
    shown: list[Completion] = []
    for completion in _in_order(done, [prompt.id for prompt in prompts]):
        shown.append(completion)
        if options["as_json"]:
            click.echo(msgspec.json.encode(_document(completion)).decode())
        else:
            if options["prompts"] is not None:
                click.echo(f"--- {completion.request_id}")
            click.echo(completion.text.decode(errors="replace"))
    _summarise(shown, time.perf_counter() - began)
    for completion in shown:
        if completion.finish_reason is FinishReason.ERROR:
            raise click.ClickException(f"{completion.request_id}: {failed(completion)}")


@click.command("bench")
@_engine_options
@click.option(
    "--task",
    type=click.Choice(["code-gen", "chat", "rewrite"]),
    help="Prompts that come with the package; code-gen, if nothing is said.",
)
@click.option(
    "--prompts", type=click.Path(dir_okay=False, path_type=Path), help="Instead of --task."
)
@click.option("--concurrency", default="1,8", show_default=True, help="Comma-separated.")
@click.option("--duration", type=click.FloatRange(0.0), default=60.0, show_default=True, help="s")
@click.option("--max-new-tokens", type=int, default=64, show_default=True)
@click.option("--json", "output", type=click.Path(dir_okay=False, path_type=Path), metavar="OUT")
@click.pass_obj
def bench(context: Any, /, **options: Any) -> None:
    """Measure greedy decoding with and without drafting, side by side."""
    from engine.benchmark import measure
    from engine.opening import open_model
    from engine.prompts import read_prompts, task_prompts

    if options["task"] is not None and options["prompts"] is not None:
        raise click.UsageError("--task and --prompts exclude each other")
    concurrencies = _concurrencies(options["concurrency"])
    if options["prompts"] is not None:
        prompts = read_prompts(options["prompts"])
    else:
        prompts = task_prompts(options["task"] or "code-gen")
    config = _config(options, max_running=max(concurrencies))
    model = open_model(resolve(context.home, options["model"]), config)
    requests = [_request(prompt, model.tokenizer, options) for prompt in prompts]
    for request in requests:
        model.limits.check(request)
    results = [
        measure(
            model,
            config,
            requests,
            concurrency=concurrency,
            duration_s=options["duration"] / len(concurrencies),
            progress=lambda line: click.echo(line, err=True),
        )
        for concurrency in concurrencies
    ]
    for result in results:
        _show(result)
    if options["output"] is not None:
        document = {"engine": model.info, "config": config, "results": results}
        options["output"].write_bytes(msgspec.json.format(msgspec.json.encode(document)))
    if not all(result.identical for result in results):
        raise click.ClickException("the arms did not emit the same tokens")


def _prompts(options: dict[str, Any]) -> list[Prompt]:
    from engine.prompts import Prompt, read_prompts

    text = options["prompt"]
    if (text is None) == (options["prompts"] is None):
        raise click.UsageError("exactly one of --prompt and --prompts is needed")
    if options["chat"] and text is None:
        raise click.UsageError("--chat goes with --prompt; a file says `messages` itself")
    if text is None:
        return read_prompts(options["prompts"])
    if options["chat"]:
        return [Prompt("prompt", messages=({"role": "user", "content": text},))]
    return [Prompt("prompt", prompt=text)]


def _config(options: dict[str, Any], **changes: Any) -> EngineConfig:
    names = ("backend", "device", "threads", "kv_tokens")
    return EngineConfig.of(
        options["profile"] or SHIPPED_PROFILE,
        **{name: options[name] for name in names},
        **given_parameters(options),
        **changes,
    )


def _request(prompt: Prompt, tokenizer: Tokenizer, options: dict[str, Any]) -> GenerationRequest:
    sampling = {
        name: options[name]
        for name in ("temperature", "top_k", "top_p", "min_p", "seed")
        if name in options
    }
    return GenerationRequest(
        request_id=prompt.id,
        tenant_id="local",
        prompt_ids=tuple(prompt.encoded(tokenizer)),
        max_tokens=options["max_new_tokens"],
        sampling=SamplingParams(**sampling),
        stop=options.get("stop", ()),
    )


def _in_order(completions: Iterable[Completion], ids: list[str]) -> Iterable[Completion]:
    """Yield completions in the prompts' order, each as soon as those before it are there."""
    early: dict[str, Completion] = {}
    coming = iter(ids)
    wanted = next(coming, None)
    for completion in completions:
        early[completion.request_id] = completion
        while wanted in early:
            yield early.pop(wanted)
            wanted = next(coming, None)


def _document(completion: Completion) -> dict[str, Any]:
    counters = completion.counters
    return {
        "id": completion.request_id,
        "prompt_tokens": completion.prompt_tokens,
        "token_ids": completion.token_ids,
        "text": completion.text.decode(errors="replace"),
        "finish_reason": completion.finish_reason,
        "detail": completion.detail,
        "counters": counters,
        "draft_hit_rate": counters.draft_hit_rate,
        "mean_accepted_length": counters.mean_accepted_length,
        "prefill_ms": completion.prefill_ms,
        "decode_tokens_per_s": completion.decode_tokens_per_s,
    }


def _summarise(completions: list[Completion], elapsed_s: float) -> None:
    tokens = sum(len(completion.token_ids) for completion in completions)
    steps = sum(completion.counters.steps for completion in completions)
    depth = sum(completion.counters.drafted_depth for completion in completions)
    accepted = sum(completion.counters.accepted_tokens for completion in completions)
    hit_rate = f"{accepted / depth:.2f}" if depth else "none drafted"
    click.echo(
        f"{len(completions)} prompts, {tokens} tokens in {elapsed_s:.2f} s: "
        f"{tokens / elapsed_s:.1f} tokens/s, mean accepted length {tokens / max(steps, 1):.2f}, "
        f"draft hit rate {hit_rate}",
        err=True,
    )


def _concurrencies(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise click.BadParameter("numbers from 1 on, comma-separated", param_hint="--concurrency")
    return found


def _show(result: ConcurrencyResult) -> None:
    click.echo(
        f"concurrency {result.concurrency}: {result.rounds} rounds of {result.prompts_per_round} "
        f"prompts, tokens {'identical' if result.identical else 'DIFFERENT'}"
    )
    click.echo("  arm      tokens/s  ratio  length  hit rate  depth  accepted/node")
    for arm in result.arms:
        cells = (
            f"{arm.tokens_per_s:8.1f}",
            f"{arm.ratio:5.2f}",
            _cell(arm.mean_accepted_length, 6),
            _cell(arm.draft_hit_rate, 8),
            _cell(arm.mean_drafted_depth, 5),
            _cell(arm.node_efficiency, 13),
        )
        click.echo(f"  {arm.arm:<8} {'  '.join(cells)}")


def _cell(value: float | None, width: int) -> str:
    return "-".rjust(width) if value is None else f"{value:{width}.2f}"
