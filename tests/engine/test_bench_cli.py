"""`dflash bench` from the command line, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result
from draft_heads import random_head
from tiny_models import write_tiny_dfm

from engine.bench_cli import bench
from engine.draft.head.file import write_head


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    (home / "models").mkdir()
    write_tiny_dfm(home / "models" / "tiny.dfm")
    return home


def run(home: Path, *arguments: object) -> Result:
    common = ["--model", "tiny", "--threads", "1", "--kv-tokens", "2048"]
    return CliRunner().invoke(
        bench, [*common, *map(str, arguments)], obj=SimpleNamespace(home=home)
    )


def test_variants_take_turns_and_say_the_same(home: Path, tmp_path: Path) -> None:
    prompts, output, chart = tmp_path / "p.jsonl", tmp_path / "o.json", tmp_path / "o.svg"
    lines = [
        {"id": f"p{index}", "prompt": "the and in " * 5, "category": "code" if index % 2 else "rag"}
        for index in range(4)
    ]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    result = run(
        home,
        *("--prompts", prompts, "--chat", "--limit", 1, "--concurrency", "1,3", "--rounds", 2),
        *("--max-new-tokens", 12, "--variants", "verifier-only,chain", "--perplexity-tokens", 50),
        *("--json", output, "--chart", chart),
    )
    assert result.exit_code == 0, result.output
    document = json.loads(output.read_text())
    assert set(document["ratios"]) == {"verifier-only", "chain"}
    assert set(document["ratios"]["chain"]) == {"1", "3"}
    assert set(document["ratios_by_category"]["chain"]["1"]) == {"rag", "code"}
    assert document["identical"]
    assert document["engines"]["dflash"]["backend"] == "fp32"
    assert document["perplexity"]["dflash"] > 1
    assert 0 <= document["others_load"] <= 1
    assert document["opening_ms"]["dflash"] > 0
    by_arm = {row["arm"]: row for row in document["results"] if row["category"] is None}
    assert by_arm["dflash"]["prefill_tokens_per_s"] > 0
    assert by_arm["dflash"]["peak_memory_bytes"] > 2**20
    assert by_arm["verifier-only"]["mean_accepted_length"] == 1.0
    assert by_arm["verifier-only"]["rejection_rate"] is None
    mixed = document["settings"]["cells"][-1]
    assert mixed["prompts"] == ["p0", "p1", "p0#2"]
    assert "all arms of ours said the same tokens" in result.stdout
    assert "<svg" in chart.read_text()


def test_heads_are_compared_by_file(home: Path, tmp_path: Path) -> None:
    output, model = tmp_path / "o.json", home / "models" / "tiny.dfm"
    heads = []
    for name, groups in (("dense", 1), ("grouped", 2)):
        write_head(tmp_path / f"{name}.dfh", random_head(model, groups=groups, window=0, layers=1))
        heads.append(f"{name}={tmp_path / name}.dfh")
    result = run(
        home,
        *("--limit", 2, "--concurrency", 1, "--rounds", 1, "--max-new-tokens", 12),
        *("--degrade-policy", "never", "--variants", ",".join(["headless", *heads])),
        *("--json", output),
    )
    assert result.exit_code == 0, (result.output, result.exception)
    document = json.loads(output.read_text())
    assert document["identical"]
    rows = {row["arm"]: row for row in document["results"] if row["category"] is None}
    assert set(document["ratios"]) == {"headless", "dense", "grouped"}
    assert rows["headless"]["head_ms"] is None
    assert rows["dense"]["head_ms"] > 0
    assert rows["grouped"]["head_ms"] > 0
    assert rows["grouped"]["head_ms"] != rows["dense"]["head_ms"], "each was timed by itself"


def test_a_stress_run_ends_in_a_verdict(home: Path, tmp_path: Path) -> None:
    output = tmp_path / "stress.json"
    result = run(
        home,
        *("--task", "code-gen", "--limit", 2, "--duration", 0.4, "--max-new-tokens", 8),
        *("--concurrency", "1,3", "--json", output),
    )
    document = json.loads(output.read_text())
    for verdict in document["stress"].values():
        assert verdict["requests"] >= 1
        assert verdict["errors"] == verdict["garbled"] == 0
        assert verdict["gap_ms_p99"] >= verdict["gap_ms_median"] > 0
    # The pace is the machine's: only here may a run fail.
    assert (result.exit_code == 0) == document["passed"] == ("FAILED" not in result.stdout)


def test_a_profile_and_scaled_positions_are_taken_from_the_command_line(
    home: Path, tmp_path: Path
) -> None:
    output = tmp_path / "stress.json"
    run(
        home,
        *("--profile", "default", "--verifier-batch-size", 2, "--degrade-policy", "never"),
        *("--rope-scaling-factor", 2.0, "--concurrency", 1, "--duration", 0, "--limit", 1),
        *("--max-new-tokens", 4, "--json", output),
    )
    document = json.loads(output.read_text())
    config = document["config"]
    assert (config["draft_block_size"], config["verifier_batch_size"]) == (4, 2)
    assert config["degrade_policy"] == "never"
    assert document["engine"]["rope_scaling_factor"] == 2.0


def test_a_peer_that_is_absent_is_a_clear_error(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "llama_cpp.py").write_text("raise ModuleNotFoundError('llama_cpp')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    result = run(
        home,
        *("--peers", "llama.cpp", "--gguf", home / "models" / "tiny.gguf", "--max-new-tokens", 2),
    )
    assert result.exit_code == 1
    assert "llama.cpp needs llama-cpp-python" in str(result.exception)
    unknown = run(home, "--peers", "llama.cpp", "--max-new-tokens", 2)
    assert "say where it is with --gguf" in str(unknown.exception)


def test_transformers_runs_the_same_weights(home: Path, tmp_path: Path) -> None:
    output = tmp_path / "o.json"
    result = run(
        home,
        *("--peers", "transformers", "--gguf", home / "models" / "tiny.gguf", "--limit", 2),
        *("--rounds", 1, "--max-new-tokens", 6, "--concurrency", 2, "--perplexity-tokens", 60),
        *("--json", output),
    )
    assert result.exit_code == 0, (result.output, result.exception)
    document = json.loads(output.read_text())
    assert document["ratios"]["transformers"]["2"] > 0
    ours, theirs = document["perplexity"]["dflash"], document["perplexity"]["transformers"]
    assert theirs == pytest.approx(ours, rel=0.1)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--task", "poetry"], "poetry"),
        (["--concurrency", "0"], "--concurrency"),
        (["--concurrency", "1,x"], "--concurrency"),
        (["--peers", "vllm"], "vllm"),
        (["--variants", "magic"], "magic"),
        (["--variants", "dense=none.dfh"], "none.dfh"),
        (["--variants", "chain=README.md,chain"], "name of its own"),
        (["--task", "chat", "--prompts", "x"], "exclude each other"),
        (["--roofline", "--duration", "1"], "exclude each other"),
        (["--duration", "1", "--peers", "llama.cpp"], "ours alone"),
        (["--speed", "max"], "No such option"),
    ],
)
def test_a_bench_refuses_what_it_does_not_know(
    home: Path, arguments: list[str], complaint: str
) -> None:
    result = run(home, *arguments)
    assert result.exit_code == 2
    assert complaint in result.output
