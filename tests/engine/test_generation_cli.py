"""`dflash generate` from the command line, on a tiny model."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result
from tiny_models import write_tiny_dfm

from engine.evaluation_cli import evaluate
from engine.generation_cli import generate
from engine.prompts import InvalidPrompts


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    (home / "models").mkdir()
    write_tiny_dfm(home / "models" / "tiny.dfm")
    return home


COMMON = ("--model", "tiny", "--threads", "1", "--kv-tokens", "2048")


def run(home: Path, command: object, *arguments: object, before: Iterable[str] = COMMON) -> Result:
    return CliRunner().invoke(
        command, [*before, *map(str, arguments)], obj=SimpleNamespace(home=home)
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


def test_a_file_that_is_no_text_is_refused_by_its_name(home: Path, tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\x00\xfe")
    perplexity = ["perplexity", "--model", "tiny"]
    for refused in (
        run(home, generate, "--prompt", "a", "--json-schema", binary),
        run(home, generate, "--prompts", binary),
        run(home, evaluate, "--text", binary, before=perplexity),
        run(home, evaluate, "--prompts", binary, before=perplexity),
    ):
        assert isinstance(refused.exception, InvalidPrompts)
        assert str(binary) in str(refused.exception)


def test_a_schema_of_a_file_is_followed_and_scores_are_shown(home: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["the", "and"]}')
    result = run(
        home,
        generate,
        *("--prompt", "the and", "--json", "--json-schema", schema, "--top-logprobs", 2),
        *("--repetition-penalty", 1.2, "--logit-bias", 5, -3),
    )
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    assert json.loads(shown["text"]) in {"the", "and"}
    assert len(shown["logprobs"]) == len(shown["top_logprobs"]) == len(shown["token_ids"])
    assert all(len(beside) == 2 for beside in shown["top_logprobs"])
    assert 0 in shown["forced"], "a quotation mark is all that can begin"

    schema.write_text('{"type": "wizard"}')
    refused = run(home, generate, "--prompt", "a", "--json-schema", schema)
    assert refused.exit_code == 1
    assert "wizard" in refused.output


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
        (["--prompt", "x", "--frequency-penalty", 3], "frequency_penalty"),
        (["--prompt", "x", "--length-penalty", 1], "No such option"),
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
