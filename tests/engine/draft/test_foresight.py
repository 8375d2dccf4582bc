"""A block head that takes too much of a step is left out; phrases cost nothing and stay."""

from __future__ import annotations

import numpy as np
import pytest
from block_models import write_block_dfm
from draft_heads import random_head
from tiny_models import TinyShape

from engine.config import EngineConfig
from engine.dfm.container import ModelFile
from engine.draft.foresight import Foresight
from engine.draft.phrases import Phrases
from engine.opening import foresight_of, open_model


@pytest.fixture(scope="module")
def foresight(tmp_path_factory: pytest.TempPathFactory) -> Foresight:
    path = write_block_dfm(tmp_path_factory.mktemp("models") / "tiny.dfm", TinyShape())
    config = EngineConfig(kv_tokens=64, threads=1, draft_head="none", draft=False)
    decoder = open_model(path, config).decoder
    head = foresight_of(random_head(path), ModelFile.open(path), decoder).head
    return Foresight(Phrases({}), head)


def test_a_head_is_kept_where_a_step_costs_enough_and_left_out_where_it_does_not(
    foresight: Foresight,
) -> None:
    assert foresight.head is not None
    draft_ms = foresight.head.draft_ms()
    assert 0.0 < draft_ms < np.inf
    assert foresight.affordable(draft_ms * 1000) is foresight
    assert foresight.affordable(draft_ms / 1000) == Foresight(foresight.phrases)
    assert Foresight(foresight.phrases).affordable(0.0) == Foresight(foresight.phrases)
