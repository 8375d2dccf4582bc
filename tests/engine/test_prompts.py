"""Prompt files: what is taken, and what is refused with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.prompts import TASKS, InvalidPrompts, Prompt, read_prompts, selected, task_prompts


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    return path


def test_raw_text_conversations_and_task_ids_are_taken(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        '{"id": "a", "prompt": "def f():"}\n\n'
        '{"id": 2, "messages": [{"role": "user", "content": "hi"}]}\n'
        '{"task_id": "HumanEval/0", "prompt": "", "entry_point": "f"}\n',
    )
    assert read_prompts(path) == [
        Prompt("a", prompt="def f():"),
        Prompt("2", messages=({"role": "user", "content": "hi"},)),
        Prompt("HumanEval/0", prompt="", category="code"),
    ]


def test_spec_bench_asks_the_first_turn_under_our_categories(tmp_path: Path) -> None:
    lines = [
        {"question_id": number, "category": category, "turns": ["first", "second"]}
        for number, category in enumerate(["summarization", "qa", "writing", "limericks"])
    ]
    prompts = read_prompts(written(tmp_path, "\n".join(map(json.dumps, lines))))
    assert [prompt.category for prompt in prompts] == ["summarisation", "chat", "chat", "limericks"]
    assert prompts[0].messages == ({"role": "user", "content": "first"},)
    assert prompts[0].asked() is prompts[0]
    assert Prompt("a", prompt="x", category="code").asked() == Prompt(
        "a", messages=({"role": "user", "content": "x"},), category="code"
    )


def test_a_selection_is_spread_over_the_file_and_even_among_categories() -> None:
    prompts = [
        Prompt(f"{category}{index}", prompt="", category=category)
        for category, count in (("code", 10), (None, 2))
        for index in range(count)
    ]
    chosen = selected(prompts, 3)
    assert [prompt.id for prompt in chosen["code"]] == ["code0", "code3", "code6"]
    assert [len(group) for group in chosen.values()] == [3, 2]
    assert list(chosen) == ["code", "other"]
    assert sum(map(len, selected(prompts, None).values())) == 12


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "truncated"),
        ("[]", "not a JSON object"),
        ('{"prompt": "x"}', "`id`"),
        ('{"id": true, "prompt": "x"}', "`id`"),
        ('{"id": "b"}', "exactly one"),
        ('{"id": "b", "prompt": "x", "messages": []}', "exactly one"),
        ('{"id": "b", "prompt": 3}', "Expected `str"),
        ('{"id": "b", "messages": [{"role": 1}]}', "Expected `str"),
        ('{"id": "b", "turns": []}', "length >= 1"),
        ('{"id": "b", "prompt": "x", "category": 1}', "Expected `str"),
        ('{"id": "a", "prompt": "again"}', "used in line 1"),
        ('{"id": "b", "prompt": "x", "more": ' + "[" * 10**5, "recursion"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    path = written(tmp_path, f'{{"id": "a", "prompt": "x"}}\n{line}\n')
    with pytest.raises(InvalidPrompts, match=f"prompts.jsonl:2: .*{complaint}"):
        read_prompts(path)


def test_a_missing_binary_or_empty_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path, written(tmp_path, "\n")):
        with pytest.raises(InvalidPrompts):
            read_prompts(path)
    (tmp_path / "prompts.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidPrompts):
        read_prompts(tmp_path / "prompts.jsonl")


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_prompts_of_its_own(task: str) -> None:
    prompts = task_prompts(task)
    assert len({prompt.id for prompt in prompts}) == len(prompts) == 8
