"""`dflash train-head` from nothing to a head that serves, on a tiny model."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from block_models import write_block_dfm
from click.testing import CliRunner, Result
from tiny_models import TinyShape

from engine.config import EngineConfig
from engine.dfm.container import ModelFile
from engine.draft.head.file import read_card
from engine.draft.head.shape import default_shape
from engine.errors import InvalidConfig
from engine.generation_cli import generate
from engine.opening import open_model
from engine.training import corpus, fitting, pipeline
from engine.training.corpus import shards
from engine.training.features import Features, features_of
from engine.training.openings import chat_frame
from engine.training_cli import train_head

SHAPE = TinyShape(seed=3, hidden=64, heads=4, kv_heads=2, context_length=512)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_block_dfm(tmp_path_factory.mktemp("models") / "tiny.dfm", SHAPE)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "SEQUENCES", 6)
    monkeypatch.setattr(corpus, "_RESPONSE_TOKENS", 60)
    monkeypatch.setattr(pipeline, "_EVALUATED_TOKENS", 40)


def run(model: Path, out: Path, *arguments: object) -> Result:
    common = ["--model", str(model), "--out", str(out), "--threads", "1", "--prompts", "4"]
    return CliRunner().invoke(
        train_head, [*common, *map(str, arguments)], obj=SimpleNamespace(home=out)
    )


def said(model: Path, head: str) -> str:
    options = ["--model", str(model), "--threads", "1", "--kv-tokens", "512", "--draft-head", head]
    result = CliRunner().invoke(
        generate,
        [*options, "--prompt", "the and then", "--max-new-tokens", "24"],
        obj=SimpleNamespace(home=model.parent),
    )
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_head_is_trained_evaluated_and_gone_on_with(model: Path, tmp_path: Path) -> None:
    first = run(model, tmp_path, "--tokens", 200, "--hours", 0.0002)
    assert first.exit_code == 0, first.output
    assert "4 held-out prompts" in first.stdout
    card = read_card(tmp_path / "head.dfh")
    assert (card.model, card.seed) == ("tiny", 0)
    assert card.steps > 0
    assert card.corpus_tokens > 0
    document = json.loads((tmp_path / "evaluation.json").read_bytes())
    assert document["head"]["steps"] == card.steps
    arms = {(arm["arm"], arm["node_budget"]) for arm in document["evaluation"]["arms"]}
    assert arms == {
        (arm, nodes) for arm in ("suffixes", "phrases", "head", "both") for nodes in (4, 8)
    }
    assert document["evaluation"]["identical"]
    for arm in document["evaluation"]["arms"]:
        assert arm["mean_accepted_length"] >= 1.0
        assert all(0 <= share <= 1 for share in arm["acceptance_by_depth"])
        assert sum(row["edges"] for row in arm["reliability"]["all"]) > 0
    known = [shard.path.read_bytes() for shard in shards(tmp_path / "corpus")]
    # asked for more, it goes on where it stopped: with the next shard, from the last step
    second = run(model, tmp_path, "--tokens", 600, "--hours", 0.0003)
    assert second.exit_code == 0, second.output
    grown = [shard.path.read_bytes() for shard in shards(tmp_path / "corpus")]
    assert grown[: len(known)] == known
    assert len(grown) > len(known)
    assert read_card(tmp_path / "head.dfh").steps > card.steps
    # and the head it wrote is one that an engine takes, and that changes nothing it says
    texts = {said(model, choice) for choice in ("none", str(tmp_path / "head.dfh"))}
    assert len(texts) == 1
    opened = open_model(model, EngineConfig(threads=1, draft_head=str(tmp_path / "head.dfh")))
    assert opened.foresight.head is not None
    assert opened.foresight.phrases is not None


def test_a_folder_of_another_model_or_seed_is_not_gone_on_with(model: Path, tmp_path: Path) -> None:
    """What one model said must not be fitted to in the name of another of the same shape."""
    sibling = write_block_dfm(tmp_path / "sibling.dfm", dataclasses.replace(SHAPE, seed=4))
    out = tmp_path / "head"
    assert run(model, out, "--tokens", 1, "--hours", 0).exit_code == 0
    whole = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    for result, what in (
        (run(sibling, out, "--tokens", 1, "--hours", 0), "model"),
        (run(model, out, "--tokens", 1, "--hours", 0, "--seed", 1), "seed"),
    ):
        assert isinstance(result.exception, InvalidConfig)
        assert f"begun with another {what}" in str(result.exception)
    assert whole == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_a_corpus_is_decided_by_its_seed_alone(model: Path, tmp_path: Path) -> None:
    config = EngineConfig(backend="blocks", kv_tokens=2048, threads=1, draft_head="none")
    opened = open_model(model, config)
    for name in ("one", "other"):
        corpus.grow(tmp_path / name, opened, config, tokens=1, seed=4)
    one, other = (list(shards(tmp_path / name)) for name in ("one", "other"))
    assert [shard.held_out for shard in one] == [False, True]
    assert [shard.path.read_bytes() for shard in one] == [
        shard.path.read_bytes() for shard in other
    ]
    for sequence in one[0].sequences():
        assert 0 < sequence.prompt_length < len(sequence.tokens)
        assert sequence.tokens.max() < opened.tokenizer.vocab_size
    # some prompts are conversations: the template's frame stands around what was sampled
    frame = chat_frame(opened.tokenizer)
    assert frame is not None
    framed = 0
    for sequence in one[0].sequences():
        prompt = tuple(sequence.tokens[: sequence.prompt_length].tolist())
        if prompt[: len(frame.before)] == frame.before:
            assert prompt[-len(frame.after) :] == frame.after
            framed += 1
    assert 0 < framed < len(one[0].sequences())


def test_what_a_response_says_again_and_again_is_cut() -> None:
    assert corpus._unlooped([1, 2, 3, 4] * 30) == [1, 2, 3, 4] * 6
    varied = np.random.default_rng(0).integers(0, 1000, 200).tolist()
    assert corpus._unlooped(varied) == varied


def test_fitting_learns_and_a_checkpoint_goes_on_exactly(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given the same batches, stopping in between changes nothing, and the loss falls."""
    monkeypatch.setattr(fitting, "_WARMUP_STEPS", 1)
    config = EngineConfig(backend="blocks", kv_tokens=2048, threads=1, draft_head="none")
    opened = open_model(model, config)
    corpus.grow(tmp_path / "corpus", opened, config, tokens=1, seed=0)
    (shard, _) = shards(tmp_path / "corpus")
    for groups, layers, window in ((1, 1, 64), (2, 1, 64), (1, 1, 0), (1, 0, 0)):
        shape = default_shape(opened.decoder.info, groups=groups, layers=layers, window=window)
        ids = np.arange(shape.vocabulary, dtype=np.int32)
        frozen = pipeline.frozen_parts(ModelFile.open(model), shape, ids)
        features = features_of(shard, tmp_path / "features", opened.decoder, shape.tap_layers)
        whole, half, rest = (
            fitting.Fitting(shape, ids, frozen, seed=1, exact=True) for _ in range(3)
        )

        def steps(of: fitting.Fitting, count: int, features: Features = features) -> list[float]:
            batches = of._batches([shard], lambda _: features)
            return [of._step(next(batches), 0.0) for _ in range(count)]

        losses = steps(whole, 10)
        assert sum(losses[-3:]) < 0.95 * sum(losses[:3])
        steps(half, 4)
        half.save(tmp_path / "checkpoint.pt")
        rest.resume(tmp_path / "checkpoint.pt")
        assert steps(rest, 6) == losses[4:]
        for name, value in whole._average.items():
            assert torch.equal(value, rest._average[name])
