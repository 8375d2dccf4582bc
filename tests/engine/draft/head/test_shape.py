"""What a head costs: counted on a real pass, against what its shape says."""

from __future__ import annotations

import torch

from engine.dfm.header import Architecture, RopeProfile
from engine.draft.head.network import HeadNetwork
from engine.draft.head.shape import HeadShape, default_shape

SMOLLM2 = Architecture(
    family="llama",
    layers=30,
    hidden=576,
    intermediate=1536,
    heads=9,
    kv_heads=3,
    head_dim=64,
    vocab_size=49152,
    context_length=8192,
    norm_epsilon=1e-5,
    tied_embeddings=True,
    rope=RopeProfile(theta=1e5, dimensions=64),
)


def counted(shape: HeadShape) -> int:
    """Run one draft and count the multiply-adds of every product in it."""
    total = 0

    def project(name: str, rows: torch.Tensor) -> torch.Tensor:
        nonlocal total
        sizes = {**shape.linears, "vocabulary": (shape.vocabulary, shape.hidden)}
        outputs, inputs = sizes[name]
        assert rows.shape[1:] == (shape.groups, inputs // shape.groups)
        weight = torch.zeros(shape.groups, inputs // shape.groups, outputs // shape.groups)
        total += len(rows) * weight.numel()
        return (rows.transpose(0, 1) @ weight).transpose(0, 1)

    vectors = {name: torch.zeros(extents) for name, extents in shape.vectors.items()}
    network = HeadNetwork(shape, vectors, project)
    fused, injected = network.features(torch.zeros(len(shape.tap_layers), 1, shape.hidden))
    window = injected.expand(1, shape.window, -1)
    roots, visible = torch.zeros(1, shape.hidden), torch.ones(1, shape.window, dtype=torch.bool)
    hidden = network.slots(roots, fused, window, visible).flatten(0, 1)
    network.logits(hidden)
    network.succession(
        hidden[:1].expand(shape.expansions, -1), torch.zeros(shape.expansions, dtype=torch.int64)
    )
    keys = shape.window + shape.slots + 1
    for layer in range(shape.layers if shape.window else 0):
        queries = shape.slots + (layer < shape.layers - 1)
        total += 2 * queries * keys * shape.heads * shape.head_dim  # scores, then values
    return total


def test_the_shape_knows_what_a_pass_computes() -> None:
    for shape in (default_shape(SMOLLM2, window=64), default_shape(SMOLLM2, groups=3)):
        for layers in (0, 1, 2):
            deeper = HeadShape(**{**_fields(shape), "layers": layers})
            assert deeper.products == counted(deeper)


def test_sliced_by_the_models_key_value_heads_it_costs_at_most_two_fifths() -> None:
    for window in (0, 64):
        dense = default_shape(SMOLLM2, window=window)
        grouped = default_shape(SMOLLM2, window=window, groups=SMOLLM2.kv_heads)
        assert counted(grouped) <= 0.4 * counted(dense)


def test_a_group_has_whole_heads_and_whole_blocks() -> None:
    shape = default_shape(SMOLLM2, groups=3)
    assert shape.vocabulary % 3 == shape.rank % 96 == shape.intermediate % 96 == 0
    assert shape.vocabulary > 8000


def _fields(shape: HeadShape) -> dict[str, object]:
    return {name: getattr(shape, name) for name in shape.__struct_fields__}
