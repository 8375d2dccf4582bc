from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from engine.errors import UnsupportedModel
from engine.kernels import linear
from engine.kernels.backends import open_backend

SHAPES = [(96, 64), (269, 32), (576, 576), (33, 7)]


@pytest.fixture(params=["packed where it can be", "plain"])
def backend(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(linear, "_can_pack", lambda weight: False)
    return open_backend("fp32")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_prepared_weight_multiplies_every_tile_exactly_enough(backend, shape, has_bias):
    random = torch.Generator().manual_seed(1)
    weight = torch.randn(shape, generator=random)
    bias = torch.randn(shape[0], generator=random) if has_bias else None
    prepared = backend.prepare(weight, bias)
    for count in prepared.row_tiles:
        rows = torch.randn(count, shape[1], generator=random)
        expected = functional.linear(
            rows.double(), weight.double(), None if bias is None else bias.double()
        )
        torch.testing.assert_close(prepared.compute(rows).double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_the_same_bits_in_every_tile_and_place(backend, shape):
    random = torch.Generator().manual_seed(2)
    prepared = backend.prepare(torch.randn(shape, generator=random), None)
    rows = torch.randn(200, shape[1], generator=random)
    first = prepared.row_tiles[-1]
    expected = prepared.compute(rows[:first])
    for count in prepared.row_tiles:
        for place in {0, count // 2, count - 1}:
            tile = rows[100 : 100 + count].clone()
            tile[place] = rows[0]
            assert torch.equal(prepared.compute(tile)[place], expected[0]), (count, place)


def test_some_tile_is_always_found(backend):
    assert backend.prepare(torch.ones(8, 8), None).row_tiles


def test_an_unknown_backend_is_refused_by_name():
    with pytest.raises(UnsupportedModel, match="no linear backend 'int3'; there is: fp32"):
        open_backend("int3")
