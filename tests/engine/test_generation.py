"""The Python API as its users know it, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import torch
from tiny_models import write_tiny_dfm
from torch import Tensor

from dflash import DFlashLogitsProcessor, DFlashModel
from engine.errors import (
    EngineError,
    InvalidConfig,
    InvalidRequest,
    ModelNotFound,
    PromptTooLong,
)

PROMPT = [20, 21, 22, 20, 21, 22, 20, 21]
VOCAB = 269


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> DFlashModel:
    path = write_tiny_dfm(tmp_path_factory.mktemp("models") / "tiny.dfm")
    return DFlashModel.from_pretrained(path, threads=1, kv_tokens=1030)


def test_a_tensor_of_prompts_comes_back_with_continuations(model: DFlashModel) -> None:
    ids = torch.tensor([PROMPT, [*PROMPT[1:], 5]])
    output = model.generate(
        inputs=ids, draft_block_size=8, verifier_batch_size=4, max_new_tokens=10
    )
    assert output.dtype == torch.int64
    assert output.shape[0] == 2
    assert output[:, :8].equal(ids)
    assert output.shape[1] <= 18


def test_one_row_a_list_and_a_batch_mean_the_same(model: DFlashModel) -> None:
    as_list = model.generate(PROMPT, max_new_tokens=6)
    as_row = model.generate(torch.tensor(PROMPT), max_new_tokens=6)
    as_batch = model.generate([PROMPT, PROMPT], max_new_tokens=6)
    assert as_list.equal(as_row)
    assert as_batch.equal(as_list.repeat(2, 1))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_neither_drafting_nor_neighbours_nor_policy_change_a_row(
    model: DFlashModel, temperature: float
) -> None:
    rows = [PROMPT, [30, 31, 32, 33], [40], [*PROMPT, 7, 8, 9] * 3]
    together = model.generate(rows, max_new_tokens=20, temperature=temperature, seed=[1, 2, 3, 4])
    longest = together.shape[1]
    for index, row in enumerate(rows):
        for options in (
            {"draft": False},
            {"rollback": "restart"},
            {"node_budget": 3, "draft_block_size": 2},
        ):
            alone = model.generate(
                row, max_new_tokens=20, temperature=temperature, seed=index + 1, **options
            )
            padded = torch.full((longest,), 2)
            padded[: alone.shape[1]] = alone[0]
            assert padded.equal(together[index])


def test_ragged_rows_are_padded_on_the_right_with_the_end_of_text(model: DFlashModel) -> None:
    output = model.generate([[20], [20, 21, 22]], max_new_tokens=3)
    assert output.shape == (2, 6)
    assert output[0, 4:].tolist() == [2, 2]


class Favour(DFlashLogitsProcessor):
    """Allows two tokens only, and remembers the shapes it was called with."""

    def __init__(self) -> None:
        self.shapes: list[torch.Size] = []
        self.drafted: list[Tensor] = []

    def __call__(self, draft_logits: Tensor, verifier_logits: Tensor) -> Tensor:
        assert draft_logits.shape == verifier_logits.shape
        assert draft_logits.dtype == verifier_logits.dtype == torch.float32
        self.shapes.append(verifier_logits.shape)
        self.drafted.append(draft_logits)
        allowed = verifier_logits[..., 50:52].clone()
        verifier_logits.fill_(-torch.inf)
        verifier_logits[..., 50:52] = allowed
        return verifier_logits


def test_a_processor_sees_blocks_and_decides_what_is_drawn(model: DFlashModel) -> None:
    favour, plain = Favour(), Favour()
    output = model.generate(PROMPT, max_new_tokens=40, logits_processor=[favour])
    undrafted = model.generate(PROMPT, max_new_tokens=40, logits_processor=[plain], draft=False)
    assert output.equal(undrafted)
    assert set(output[0, 8:].tolist()) <= {50, 51}
    assert all(len(shape) == 3 and shape[2] == VOCAB for shape in favour.shapes)
    assert max(shape[1] for shape in favour.shapes) > 1  # blocks were drafted and seen whole
    assert {tuple(shape) for shape in plain.shapes} == {(1, 1, VOCAB)}


def test_draft_logits_are_the_edges_log_weights_where_no_head_gave_any(model: DFlashModel) -> None:
    favour = Favour()
    model.generate(PROMPT, max_new_tokens=40, logits_processor=[favour])
    for drafted in favour.drafted:
        for row in drafted.flatten(0, 1):
            proposed = row[row > -torch.inf]
            assert proposed.exp().sum() <= 1.0 + 1e-5
    assert any((drafted > -torch.inf).any() for drafted in favour.drafted)


def test_a_processor_that_asks_gets_each_paths_own_tokens(model: DFlashModel) -> None:
    contexts: list[list[int]] = []

    class Recording(DFlashLogitsProcessor):
        wants_token_ids = True

        def __call__(
            self, draft_logits: Tensor, verifier_logits: Tensor, *, token_ids: Tensor
        ) -> Tensor:
            before = token_ids.shape[1] - verifier_logits.shape[1]
            for path in token_ids.tolist():
                contexts.extend(path[: before + at + 1] for at in range(verifier_logits.shape[1]))
            return verifier_logits

    output = model.generate(PROMPT, max_new_tokens=30, logits_processor=[Recording()])
    text = output[0].tolist()
    for length in range(8, len(text)):
        assert text[:length] in contexts


def test_a_failing_processor_raises_what_it_raised(model: DFlashModel) -> None:
    def broken(draft_logits: Tensor, verifier_logits: Tensor) -> Tensor:
        raise KeyError("state")

    def wrong(draft_logits: Tensor, verifier_logits: Tensor) -> Tensor:
        return verifier_logits[..., :5]

    with pytest.raises(EngineError, match="broken raised KeyError") as caught:
        model.generate(PROMPT, logits_processor=[broken])
    assert isinstance(caught.value.__cause__.__cause__, KeyError)
    with pytest.raises(EngineError, match=r"wrong must return a tensor of shape \(1, \d, 269\)"):
        model.generate(PROMPT, logits_processor=[wrong])
    model.generate(PROMPT, max_new_tokens=2)  # and the model goes on


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_output_under_a_schema_satisfies_it_drafted_or_not(
    model: DFlashModel, temperature: float
) -> None:
    schema = {
        "type": "array",
        "items": {"enum": ["the and", "and the", 7]},
        "minItems": 3,
        "maxItems": 4,
    }
    options = {
        "max_new_tokens": 80,
        "temperature": temperature,
        "seed": 5,
        "json_schema": schema,
        "frequency_penalty": 0.3,
    }
    drafted = model.generate([PROMPT, PROMPT[2:]], **options)
    assert drafted.equal(model.generate([PROMPT, PROMPT[2:]], draft=False, **options))
    answer = json.loads(model.tokenizer.decode(drafted[0, len(PROMPT) :].tolist()))
    jsonschema.validate(answer, schema)


def test_a_penalty_ends_the_loop_that_a_small_model_is_caught_in(model: DFlashModel) -> None:
    plain = model.generate(PROMPT, max_new_tokens=40)[0, 8:].tolist()
    bent = model.generate(PROMPT, max_new_tokens=40, frequency_penalty=2.0)[0, 8:].tolist()
    assert len(set(bent)) > len(set(plain))


def test_nothing_is_silently_ignored(model: DFlashModel) -> None:
    for option in ("attention_mask", "do_sample", "num_beams", "length_penalty"):
        with pytest.raises(TypeError, match=option):
            model.generate(PROMPT, **{option: 1})


@pytest.mark.parametrize(
    ("inputs", "options", "error"),
    [
        ([], {}, InvalidRequest),
        ([[]], {}, InvalidRequest),
        ([1.5], {}, InvalidRequest),
        (["text"], {}, InvalidRequest),
        (torch.tensor([0.5]), {}, InvalidRequest),
        (torch.zeros(1, 1, 1, dtype=torch.int64), {}, InvalidRequest),
        ([VOCAB], {}, InvalidRequest),
        ([5], {"max_new_tokens": 0}, InvalidRequest),
        ([5], {"max_new_tokens": 4000}, PromptTooLong),
        ([5], {"temperature": float("nan")}, InvalidRequest),
        ([5], {"seed": [1, 2]}, InvalidRequest),
        ([5], {"repetition_penalty": 0.0}, InvalidRequest),
        ([5], {"logit_bias": {VOCAB: 1.0}}, InvalidRequest),
        ([5], {"json_schema": {"type": "wizard"}}, InvalidRequest),
        ([5], {"json_schema": "no schema"}, InvalidRequest),
        ([5], {"rollback": "never"}, InvalidConfig),
        ([5], {"node_budget": 0}, InvalidConfig),
    ],
)
def test_what_cannot_be_generated_is_an_error(
    model: DFlashModel, inputs: object, options: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        model.generate(inputs, **options)
    assert model.generate(PROMPT, max_new_tokens=1).shape == (1, 9)


def test_what_fills_the_storage_exactly_still_runs(tmp_path: Path) -> None:
    path = write_tiny_dfm(tmp_path / "tiny.dfm")
    model = DFlashModel.from_pretrained(path, threads=1, kv_tokens=70)
    assert model.generate(PROMPT, max_new_tokens=56).shape[1] <= 64
    with pytest.raises(PromptTooLong, match="storage of 64 tokens"):
        model.generate(PROMPT, max_new_tokens=57)


def test_a_model_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        DFlashModel.from_pretrained(tmp_path / "none.dfm")
