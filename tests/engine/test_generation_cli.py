"""`dflash generate` and `dflash bench` from the command line, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result
from tiny_models import write_tiny_dfm

from engine.generation_cli import bench, generate


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    (home / "models").mkdir()
    write_tiny_dfm(home / "models" / "tiny.dfm")
    return home


def run(home: Path, command: object, *arguments: object) -> Result:
    common = ["--model", "tiny", "--threads", "1", "--kv-tokens", "2048"]
    return CliRunner().invoke(
        command, [*common, *map(str, arguments)], obj=SimpleNamespace(home=home)
    )


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = [
        {"id": f"p{index}", "prompt": "the and the and " * (1 + index % 3)} for index in range(5)
    ]
    lines.append({"id": "chat", "messages": [{"role": "user", "content": "and then?"}]})
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_a_prompt_is_continued_on_stdout_and_summed_up_on_stderr(home: Path) -> None:
    result = run(home, generate, "--prompt", "the and", "--max-new-tokens", 5)
    assert result.exit_code == 0, result.output
    assert "1 prompts, 5 tokens" in result.stderr
    assert "1 prompts" not in result.stdout


def test_a_file_of_prompts_gives_one_object_a_line_in_order_and_drafting_changes_none(
    home: Path, prompts: Path
) -> None:
    def lines(*arguments: object) -> list[dict]:
        result = run(
            home, generate, "--prompts", prompts, "--max-new-tokens", 16, "--json", *arguments
        )
        assert result.exit_code == 0, result.output
        return [json.loads(line) for line in result.stdout.splitlines()]

    for sampling in ([], ["--temperature", 0.8, "--seed", 7, "--top-k", 40, "--top-p", 0.95]):
        drafted = lines("--concurrency", 4, *sampling)
        plain = lines("--no-draft", *sampling)
        assert [line["id"] for line in drafted] == ["p0", "p1", "p2", "p3", "p4", "chat"]
        assert [line["token_ids"] for line in drafted] == [line["token_ids"] for line in plain]
        assert [line["text"] for line in drafted] == [line["text"] for line in plain]
        assert all(line["counters"]["drafted_nodes"] == 0 for line in plain)
        assert all(line["draft_hit_rate"] is None for line in plain)
        for line in drafted:
            assert line["counters"]["emitted_tokens"] == len(line["token_ids"])
            assert line["prefill_ms"] > 0
            assert line["finish_reason"] in {"stop", "length"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "exactly one of --prompt and --prompts"),
        (["--prompt", "x", "--prompts", "y"], "exactly one"),
        (["--prompts", "none.jsonl"], "none.jsonl"),
        (["--prompt", "x", "--max-new-tokens", 0], "max_tokens"),
        (["--prompt", "x", "--max-new-tokens", 10**6], "exceed"),
        (["--prompt", "x", "--temperature", "nan"], "temperature"),
        (["--prompt", "x", "--frequency-penalty", 1], "No such option"),
        (["--prompt", "x", "--rollback", "never"], "rollback"),
        (["--prompt", "x", "--node-budget", 0], "node_budget"),
        (["--prompt", "x", "--model", "unknown"], "unknown"),
    ],
)
def test_what_cannot_be_generated_is_said_precisely(
    home: Path, arguments: list[object], complaint: str
) -> None:
    result = run(home, generate, *arguments)
    assert result.exit_code != 0
    assert complaint in result.output + str(result.exception)


def test_a_bench_compares_all_arms_and_finds_the_same_tokens(home: Path, tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    result = run(
        home,
        bench,
        *("--task", "code-gen", "--concurrency", "1,3", "--duration", 0),
        *("--max-new-tokens", 12, "--json", output),
    )
    assert result.exit_code == 0, result.output
    document = json.loads(output.read_text())
    assert [found["concurrency"] for found in document["results"]] == [1, 3]
    for found in document["results"]:
        assert found["identical"]
        assert [arm["arm"] for arm in found["arms"]] == ["plain", "anchor", "restart"]
        plain, anchor, _ = found["arms"]
        assert plain["ratio"] == 1.0
        assert plain["draft_hit_rate"] is None
        assert anchor["emitted_tokens"] == plain["emitted_tokens"]
    assert "tokens identical" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--task", "poetry"], "poetry"),
        (["--concurrency", "0"], "--concurrency"),
        (["--concurrency", "1,x"], "--concurrency"),
        (["--task", "chat", "--prompts", "x"], "exclude each other"),
        (["--speed", "max"], "No such option"),
    ],
)
def test_a_bench_refuses_what_it_does_not_know(
    home: Path, arguments: list[str], complaint: str
) -> None:
    result = run(home, bench, *arguments)
    assert result.exit_code == 2
    assert complaint in result.output


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--expert-cache-size", 1024], "dense"),
        (["--use-flash-attn2"], "CUDA kernel"),
        (["--use-flash-attn2=draft"], "draft layer never"),
        (["--longest-token-length", 256], "at least 512"),
    ],
)
def test_parameters_that_this_model_cannot_honour_are_refused(
    home: Path, arguments: list[object], why: str
) -> None:
    result = run(home, generate, "--prompt", "the", *arguments)
    assert result.exit_code != 0
    assert why in str(result.exception)


def test_a_profile_and_scaled_positions_are_taken_from_the_command_line(
    home: Path, tmp_path: Path
) -> None:
    output = tmp_path / "bench.json"
    result = run(
        home,
        *(bench, "--profile", "default", "--verifier-batch-size", 2, "--degrade-policy", "never"),
        *("--rope-scaling-factor", 2.0, "--concurrency", 1, "--duration", 0),
        *("--max-new-tokens", 4, "--json", output),
    )
    assert result.exit_code == 0, result.output
    document = json.loads(output.read_text())
    config = document["config"]
    assert (config["draft_block_size"], config["verifier_batch_size"]) == (4, 2)
    assert config["degrade_policy"] == "never"
    assert document["engine"]["rope_scaling_factor"] == 2.0
