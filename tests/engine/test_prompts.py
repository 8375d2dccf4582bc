"""Prompt files: what is taken, and what is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.prompts import TASKS, InvalidPrompts, Prompt, read_prompts, task_prompts


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
        Prompt("HumanEval/0", prompt=""),
    ]


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
        ('{"id": "a", "prompt": "again"}', "used in line 1"),
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
