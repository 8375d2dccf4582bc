"""`dflash generate`: decoding from the command line, without a gateway."""

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
    from engine.completions import Completion
    from engine.prompts import Prompt
    from engine.tokenizer import Tokenizer

_DEFAULTS = EngineConfig()


def engine_options(command: Callable[..., None]) -> Callable[..., None]:
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
@engine_options
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
@click.option("--repetition-penalty", type=float, default=1.0, show_default=True)
@click.option("--frequency-penalty", type=float, default=0.0, show_default=True)
@click.option("--presence-penalty", type=float, default=0.0, show_default=True)
@click.option(
    "--logit-bias",
    type=(int, float),
    multiple=True,
    metavar="TOKEN BIAS",
    help="Add to a token's logit; may be repeated.",
)
@click.option(
    "--json-schema",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with the JSON schema that the answer must satisfy.",
)
@click.option(
    "--top-logprobs",
    type=int,
    default=0,
    show_default=True,
    help="With --json: the likeliest tokens beside each.",
)
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
    config = engine_config(options, draft=options["draft"], rollback=options["rollback"])
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


def engine_config(options: dict[str, Any], **changes: Any) -> EngineConfig:
    """Return the configuration that `engine_options` gave, with changes."""
    names = ("backend", "device", "threads", "kv_tokens")
    return EngineConfig.of(
        options["profile"] or SHIPPED_PROFILE,
        **{name: options[name] for name in names},
        **given_parameters(options),
        **changes,
    )


def _request(prompt: Prompt, tokenizer: Tokenizer, options: dict[str, Any]) -> GenerationRequest:
    from engine.prompts import read_text

    sampling = {
        name: options[name]
        for name in (
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "seed",
            "repetition_penalty",
            "frequency_penalty",
            "presence_penalty",
            "logit_bias",
        )
        if name in options
    }
    schema = options.get("json_schema")
    return GenerationRequest(
        request_id=prompt.id,
        tenant_id="local",
        prompt_ids=tuple(prompt.encoded(tokenizer)),
        max_tokens=options["max_new_tokens"],
        sampling=SamplingParams(**sampling),
        stop=options.get("stop", ()),
        top_logprobs=options.get("top_logprobs", 0),
        json_schema=None if schema is None else read_text(schema),
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
        "logprobs": completion.logprobs,
        "top_logprobs": [
            [
                {
                    "token_id": other.token_id,
                    "text": other.piece.decode(errors="replace"),
                    "logprob": other.logprob,
                }
                for other in beside
            ]
            for beside in completion.alternatives
        ],
        "forced": completion.forced,
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
