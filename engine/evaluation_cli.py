"""`dflash eval`: what a model file is worth."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine.config import EngineConfig
from engine.dfm.catalogue import DEFAULT_MODEL, resolve
from engine.perplexity.windows import STRIDE, WINDOW, perplexity, windows

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer

FILE = click.Path(dir_okay=False, exists=True, path_type=Path)
_DEFAULTS = EngineConfig()


@click.group("eval")
def evaluate() -> None:
    """Measure what a model file is worth."""


@evaluate.command("perplexity")
@click.option("--model", default=DEFAULT_MODEL, show_default=True, help="A name or a path.")
@click.option("--backend", default=_DEFAULTS.backend, show_default=True)
@click.option("--device", default=_DEFAULTS.device, show_default=True)
@click.option("--threads", type=click.IntRange(1), help="One per core, if not given.")
@click.option("--text", "texts", type=FILE, multiple=True, help="A text, one document.")
@click.option("--prompts", type=FILE, multiple=True, help="JSON Lines, a document a line.")
@click.option("--window", type=click.IntRange(2), default=WINDOW, show_default=True, help="tokens")
@click.option("--stride", type=click.IntRange(1), default=STRIDE, show_default=True, help="tokens")
@click.option("--tokens", type=click.IntRange(2), help="Score only so many of the first tokens.")
@click.option("--reference", help="Another .dfm of the same vocabulary; the ratio is shown.")
@click.option("--reference-backend", default=_DEFAULTS.backend, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_obj
def perplexity_command(context: Any, /, **options: Any) -> None:
    """Show a model's perplexity on documents, in sliding windows.

    A window holds --window tokens and begins --stride after the one before. Every token but a
    document's first counts once, in the first window that has it, given all before it there.
    """
    import msgspec

    if not options["texts"] and not options["prompts"]:
        raise click.UsageError("at least one of --text and --prompts is needed")
    if options["stride"] >= options["window"]:
        raise click.UsageError("--stride must be less than --window")
    cut: list[tuple[int, ...]] = []
    firsts: list[int] = []
    path = resolve(context.home, options["model"])
    documents = _documents(path, options)
    for document in documents:
        of_document = windows(document, options["window"], options["stride"])
        cut += of_document[0]
        firsts += of_document[1]
    if not cut:
        raise click.UsageError("no document has two tokens, so none can be scored")
    loss, tokens = _scored(path, options["backend"], cut, firsts, options)
    shown: dict[str, Any] = {
        "model": str(path),
        "backend": options["backend"],
        "documents": len(documents),
        "tokens": tokens,
        "window": options["window"],
        "stride": options["stride"],
        "perplexity": perplexity(loss, tokens),
    }
    if options["reference"] is not None:
        reference = resolve(context.home, options["reference"])
        if _documents(reference, options) != documents:
            raise click.UsageError("the reference cuts the documents into other tokens")
        other, _ = _scored(reference, options["reference_backend"], cut, firsts, options)
        shown["reference"] = str(reference)
        shown["reference_backend"] = options["reference_backend"]
        shown["reference_perplexity"] = perplexity(other, tokens)
        shown["ratio"] = shown["perplexity"] / shown["reference_perplexity"]
    if options["as_json"]:
        click.echo(msgspec.json.encode(shown).decode())
        return
    click.echo(
        f"{shown['documents']} documents, {tokens} tokens scored, window {shown['window']}, "
        f"stride {shown['stride']}\nperplexity  {shown['perplexity']:.4f}"
    )
    if "ratio" in shown:
        click.echo(
            f"reference   {shown['reference_perplexity']:.4f}\nratio       {shown['ratio']:.5f}"
        )


def _documents(path: Path, options: dict[str, Any]) -> list[list[int]]:
    """Return the documents as token ids, at most `tokens` of them in all."""
    from engine.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_dfm(path)
    left = options["tokens"]
    documents = []
    for ids in _encoded(tokenizer, options):
        document = ids if left is None else ids[:left]
        if left is not None:
            left -= len(document)
        if document:
            documents.append(document)
    return documents


def _encoded(tokenizer: Tokenizer, options: dict[str, Any]) -> list[list[int]]:
    from engine.prompts import read_prompts, read_text

    texts = [tokenizer.encode(read_text(path)) for path in options["texts"]]
    prompts = [prompt for path in options["prompts"] for prompt in read_prompts(path)]
    return texts + [prompt.encoded(tokenizer) for prompt in prompts]


def _scored(
    path: Path,
    backend: str,
    cut: list[tuple[int, ...]],
    firsts: list[int],
    options: dict[str, Any],
) -> tuple[float, int]:
    """Load a model, score the windows, and let go of it."""
    from engine.model.loading import load_decoder
    from engine.perplexity.scoring import score

    decoder = load_decoder(
        path,
        backend=backend,
        device=options["device"],
        threads=options["threads"],
        kv_tokens=max(map(len, cut)),
    )
    done = 0
    with click.progressbar(length=len(cut), label=path.stem, file=sys.stderr) as bar:

        def advance(count: int) -> None:
            nonlocal done
            bar.update(count - done)
            done = count

        return score(decoder, cut, firsts, advance)
