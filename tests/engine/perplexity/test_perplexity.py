"""Perplexity: every token once, and the figure that plain torch computes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
from block_models import write_block_dfm
from click.testing import CliRunner
from dense_llama import DenseLlama
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import TinyShape, write_tiny_dfm

from engine.evaluation_cli import evaluate
from engine.perplexity.windows import perplexity, windows
from engine.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    (home / "models").mkdir()
    write_tiny_dfm(home / "models" / "tiny.dfm")
    write_tiny_dfm(home / "models" / "other.dfm", TinyShape(seed=9))
    write_block_dfm(home / "models" / "blocks.dfm", TinyShape(), "q8")
    (home / "text.txt").write_text("the and then the other one in and on the end. " * 5)
    lines = [{"id": "a", "prompt": "the and in the"}, {"id": "b", "prompt": "on and on and"}]
    (home / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return home


def evaluated(home: Path, *arguments: object) -> dict:
    result = CliRunner().invoke(
        evaluate,
        ["perplexity", "--threads", "1", "--json", *map(str, arguments)],
        obj=SimpleNamespace(home=home),
    )
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def plain(home: Path, documents: list[list[int]], window: int, stride: int) -> float:
    """The definition, token by token: the context of each is its window's tokens before it."""
    model = DenseLlama(home / "models" / "tiny.gguf")
    losses = []
    for ids in documents:
        for target in range(1, len(ids)):
            # the first window that reaches beyond the target
            first = max(0, -(-(target + 1 - window) // stride)) * stride
            logits = model.logits(ids[first:target])[-1]
            losses.append(-float(logits.log_softmax(-1)[ids[target]]))
    return math.exp(sum(losses) / len(losses))


@given(st.integers(0, 40), st.integers(2, 12), st.data())
def test_every_token_but_the_first_counts_once_given_all_before_it_in_its_window(
    length: int, window: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, window - 1))
    ids = list(range(100, 100 + length))
    cut, firsts = windows(ids, window, stride)
    counted = [token for held, first in zip(cut, firsts, strict=True) for token in held[first:]]
    assert counted == ids[1:]
    for index, (held, first) in enumerate(zip(cut, firsts, strict=True)):
        assert list(held) == ids[index * stride : index * stride + window]
        assert first >= (1 if index == 0 else window - stride)


def test_the_figure_is_the_one_that_plain_torch_computes(home: Path) -> None:
    tokenizer = Tokenizer.from_dfm(home / "models" / "tiny.dfm")
    ids = tokenizer.encode((home / "text.txt").read_text())
    assert len(ids) > 100  # several windows, more than one chunk each
    found = evaluated(
        home, "--model", "tiny", "--text", home / "text.txt", "--window", 80, "--stride", 30
    )
    assert found["tokens"] == len(ids) - 1
    assert found["perplexity"] == pytest.approx(plain(home, [ids], 80, 30), rel=1e-4)


def test_documents_are_scored_apart_and_cut_where_asked(home: Path) -> None:
    tokenizer = Tokenizer.from_dfm(home / "models" / "tiny.dfm")
    documents = [tokenizer.encode("the and in the"), tokenizer.encode("on and on and")]
    arguments = ("--model", "tiny", "--prompts", home / "prompts.jsonl")
    found = evaluated(home, *arguments)
    assert found["documents"] == 2
    assert found["perplexity"] == pytest.approx(plain(home, documents, 512, 256), rel=1e-4)
    few = evaluated(home, *arguments, "--tokens", len(documents[0]) + 2)
    assert few["tokens"] == len(documents[0]) - 1 + 1


def test_the_ratio_is_to_a_reference_of_the_same_vocabulary(home: Path) -> None:
    text = ("--text", home / "text.txt", "--model")
    same = evaluated(home, *text, "tiny", "--reference", "tiny")
    assert same["ratio"] == 1.0
    blocks = evaluated(home, *text, "blocks", "--backend", "blocks", "--reference", "tiny")
    assert blocks["reference_perplexity"] == same["perplexity"]
    assert blocks["ratio"] == pytest.approx(1.0, abs=0.2)
    assert blocks["ratio"] != 1.0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "at least one of --text and --prompts"),
        (["--text", "none.txt"], "none.txt"),
        (["--stride", "512"], "--stride must be less"),
    ],
)
def test_what_cannot_be_scored_is_said(home: Path, arguments: list[str], complaint: str) -> None:
    text = ["--text", str(home / "text.txt")] if "--stride" in arguments else []
    result = CliRunner().invoke(
        evaluate, ["perplexity", *arguments, *text], obj=SimpleNamespace(home=home)
    )
    assert result.exit_code == 2
    assert complaint in result.output


def test_nothing_scored_is_no_number() -> None:
    assert math.isnan(perplexity(0.0, 0))
    assert perplexity(2 * math.log(3), 2) == pytest.approx(3)
