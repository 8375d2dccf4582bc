"""`dflash experts`, and a mixture of experts from the command line, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner, Result
from engine_sequences import request
from mixtures import MIXTRAL
from tiny_models import write_tiny_dfm

from engine.bench_cli import bench
from engine.completions import complete
from engine.config import EngineConfig
from engine.dfm.container import ModelFile
from engine.dfm.header import read_header
from engine.errors import InvalidConfig, UnsupportedModel
from engine.experts_cli import experts
from engine.opening import open_model

PROMPTS = [{"id": f"p{index}", "prompt": "the and the"[: 3 + 2 * index]} for index in range(2)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    (home / "models").mkdir()
    write_tiny_dfm(home / "models" / "mixture.dfm", MIXTRAL)
    write_tiny_dfm(home / "models" / "dense.dfm")
    (home / "prompts.jsonl").write_text("\n".join(map(json.dumps, PROMPTS)))
    return home


def run(home: Path, command: object, *arguments: object) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)), obj=SimpleNamespace(home=home))


def profile(home: Path, model: str) -> Result:
    return run(
        home,
        experts,
        *("profile", "--model", model, "--threads", 1, "--kv-tokens", 512),
        *("--prompts", home / "prompts.jsonl", "--max-new-tokens", 3, "--json"),
    )


def test_a_profile_is_kept_with_the_model_and_what_it_names_is_at_hand_from_the_start(
    home: Path,
) -> None:
    path = home / "models" / "mixture.dfm"
    assert run(home, experts, "show", "--model", "mixture").exit_code == 1
    before = read_header(path)
    result = profile(home, "mixture")
    assert result.exit_code == 0, result.output
    after = read_header(path)
    ModelFile.open(path).verify()
    assert after.checksum == before.checksum
    assert json.loads(result.stdout)["heat"] == [list(layer) for layer in after.expert_heat]
    chosen = np.array(after.expert_heat)
    # every row chooses two in each of two layers
    assert chosen.sum(axis=1).tolist() == [chosen[0].sum()] * MIXTRAL.layers
    needed = int((chosen > 0).sum())
    assert 0 < needed < chosen.size
    shown = run(home, experts, "show", "--model", "mixture")
    assert "the 8 hottest of all layers serve" in shown.stdout

    config = EngineConfig(threads=1, kv_tokens=512, draft=False, expert_cache_size=needed)
    model = open_model(path, config)
    loop = model.loop(config)
    assert loop.stats().caches.experts.kept == needed
    assert loop.stats().caches.expert_cache_hit_ratio is None
    asked = [
        request(model.tokenizer.encode(prompt["prompt"]), 3, request_id=prompt["id"])
        for prompt in PROMPTS
    ]
    assert len(list(complete(loop, asked, concurrency=8))) == len(PROMPTS)
    caches = loop.stats().caches
    assert caches.expert_cache_hit_ratio == 1.0
    assert caches.experts.lookups > 0
    assert caches.experts.evictions == 0


def test_a_dense_model_has_no_experts_to_count_or_to_keep(home: Path) -> None:
    assert isinstance(profile(home, "dense").exception, UnsupportedModel)
    assert isinstance(run(home, experts, "show", "--model", "dense").exception, UnsupportedModel)
    path = home / "models" / "dense.dfm"
    with pytest.raises(InvalidConfig, match="dense"):
        open_model(path, EngineConfig(expert_cache_size=4))
    config = EngineConfig(threads=1, kv_tokens=64, draft=False)
    caches = open_model(path, config).loop(config).stats().caches
    assert caches.experts is None
    assert caches.expert_cache_hit_ratio is None


def test_the_bench_says_what_part_of_the_experts_was_at_hand(home: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    result = run(
        home,
        bench,
        *("--model", "mixture", "--threads", 1, "--kv-tokens", 512, "--expert-cache-size", 2),
        *("--prompts", home / "prompts.jsonl", "--concurrency", 1, "--rounds", 1),
        *("--max-new-tokens", 4, "--perplexity-tokens", 0, "--json", output),
    )
    assert result.exit_code == 0, (result.output, result.exception)
    figures = json.loads(output.read_text())["results"][0]
    assert 0 < figures["expert_cache_hit_ratio"] < 1
