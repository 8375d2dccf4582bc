"""A head beside a model: features follow their slots, requests do not disturb each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from block_models import write_block_dfm
from draft_heads import random_head
from tiny_models import TinyShape

from engine.config import EngineConfig
from engine.dfm.container import ModelFile
from engine.draft.head.block_head import BlockHead
from engine.kernels.cpu.runtime import NativeMatrix
from engine.opening import OpenModel, foresight_of, open_model

SHAPE = TinyShape(hidden=192, intermediate=96, heads=6, kv_heads=3)
SLOTS = 64


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_block_dfm(tmp_path_factory.mktemp("models") / "tiny.dfm", SHAPE)


@pytest.fixture(scope="module", params=["blocks", "fp32"])
def model(request: pytest.FixtureRequest, path: Path) -> OpenModel:
    config = EngineConfig(backend=request.param, kv_tokens=SLOTS, threads=1, draft_head="none")
    return open_model(path, config)


@pytest.fixture(
    params=[
        {},
        {"layers": 0},
        {"layers": 2},
        {"window": 0},
        {"groups": 3, "rank": 96, "intermediate": 96},
        {"window": 0, "groups": 3, "rank": 96, "intermediate": 96},
    ],
    ids=str,
)
def head(request: pytest.FixtureRequest, model: OpenModel, path: Path) -> BlockHead:
    file = random_head(path, **request.param)
    head = foresight_of(file, ModelFile.open(path), model.decoder).head
    assert head is not None
    generator = torch.Generator().manual_seed(7)
    taps = torch.randn(2, SLOTS, SHAPE.hidden, generator=generator)
    head.store(torch.arange(SLOTS), taps)
    return head


def test_drafting_for_several_is_drafting_for_each(head: BlockHead) -> None:
    windows = [np.arange(5), np.arange(20, 60), np.array([63, 2, 40]), np.arange(0)]
    roots = [3, 200, 17, 3]
    together = head.foresee(roots, windows, 3)
    for root, window, edges in zip(roots, windows, together, strict=True):
        ((alone),) = head.foresee([root], [window], 3)
        assert [edge[:3] for edge in alone] == [edge[:3] for edge in edges]
        assert [edge.probability for edge in alone] == pytest.approx(
            [edge.probability for edge in edges], rel=1e-3
        )
        assert alone


def test_what_is_computed_natively_is_what_the_network_says(head: BlockHead) -> None:
    possible = isinstance(head.linears["root"][0], NativeMatrix) and head.shape.groups == 1
    assert (head.native is not None) == (possible and not head.shape.attends)
    if head.native is None:
        return
    windows = [np.arange(5), np.arange(20, 60), np.array([63, 2, 40]), np.arange(0)]
    drafts = head.foresee([3, 200, 17, 3], windows, 3)
    head.native = None
    for ours, theirs in zip(drafts, head.foresee([3, 200, 17, 3], windows, 3), strict=True):
        assert [edge[:3] for edge in ours] == [edge[:3] for edge in theirs]
        assert [edge.probability for edge in ours] == pytest.approx(
            [edge.probability for edge in theirs], rel=1e-3
        )


def test_edges_form_a_lattice_of_distinct_tokens_within_the_depth(head: BlockHead) -> None:
    for depth_limit in (1, 2, 8):
        (edges,) = head.foresee([3], [np.arange(30)], depth_limit)
        assert max(edge.depth for edge in edges) <= min(depth_limit, head.shape.slots)
        reached = {(0, 3)}
        for edge in edges:
            assert (edge.depth - 1, edge.previous) in reached
            reached.add((edge.depth, edge.token))
            assert 0 < edge.probability <= 1
        assert len({edge[:3] for edge in edges}) == len(edges)


def test_features_go_where_their_slots_go(head: BlockHead) -> None:
    window = np.array([1, 2, 3, 4])
    before = head.foresee([9], [window], 3)
    head.move(torch.tensor([1, 2, 3, 4]), torch.tensor([2, 3, 4, 50]))  # a chain, read first
    assert head.foresee([9], [np.array([2, 3, 4, 50])], 3) == before
    assert head.foresee([9], [window], 3) != before


def test_only_the_window_counts(head: BlockHead) -> None:
    near = np.arange(30, 30 + max(head.shape.window, 2))
    (edges,) = head.foresee([9], [near], 3)
    assert head.foresee([9], [np.concatenate([np.arange(10), near])], 3) == [edges]
    # where nothing attends only the last token's features are looked at
    assert (head.foresee([9], [near[1:]], 3) == [edges]) == (not head.shape.attends)
