"""Keys and values by slot: what is written is read, and moves may overlap."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.cache.storage import KvStorage

LAYERS, SLOTS, HEADS, DIM = 2, 12, 3, 4


def filled() -> tuple[KvStorage, torch.Tensor]:
    """A storage with random content, and the same as [layers, slots, 2, heads, dim]."""
    storage = KvStorage(LAYERS, SLOTS, HEADS, DIM)
    content = torch.randn(LAYERS, SLOTS, 2, HEADS, DIM, generator=torch.Generator().manual_seed(0))
    for layer in range(LAYERS):
        storage.write(layer, torch.arange(SLOTS), content[layer])
    return storage, content


def stored(storage: KvStorage) -> torch.Tensor:
    return torch.stack([storage.read(layer, torch.arange(SLOTS)) for layer in range(LAYERS)])


@given(slots=st.lists(st.integers(0, SLOTS - 1), unique=True))
def test_what_is_written_is_read_in_the_order_asked_for(slots):
    storage, content = filled()
    chosen = torch.tensor(slots, dtype=torch.int64)
    assert torch.equal(storage.read(1, chosen), content[1, chosen])


@given(data=st.data(), count=st.integers(0, SLOTS))
def test_a_move_reads_everything_before_it_writes(data, count):
    slots = st.permutations(range(SLOTS)).map(lambda order: order[:count])
    sources, targets = data.draw(slots), data.draw(slots)
    storage, content = filled()
    expected = content.clone()
    for source, target in zip(sources, targets, strict=True):
        expected[:, target] = content[:, source]
    storage.move(torch.tensor(sources, dtype=torch.int64), torch.tensor(targets, dtype=torch.int64))
    assert torch.equal(stored(storage), expected)


def test_the_null_slot_and_unwritten_slots_are_zero():
    storage = KvStorage(LAYERS, SLOTS, HEADS, DIM)
    storage.write(0, torch.tensor([0]), torch.ones(1, 2, HEADS, DIM))
    rest = torch.arange(1, storage.null_slot + 1)
    assert not storage.read(0, rest).any()
    assert not storage.read(1, torch.tensor([0])).any()


def test_a_layer_is_a_view_that_sees_later_writes():
    storage, content = filled()
    view = storage.layer(1)
    assert view.shape == (2, HEADS, SLOTS + 1, DIM)
    storage.write(1, torch.tensor([3]), content[1, 5:6])
    assert torch.equal(view[:, :, 3], content[1, 5])


def test_it_can_be_written_with_and_without_inference_mode():
    storage = KvStorage(LAYERS, SLOTS, HEADS, DIM)
    with torch.inference_mode():
        storage.write(0, torch.tensor([1]), torch.ones(1, 2, HEADS, DIM))
        storage.move(torch.tensor([1]), torch.tensor([2]))
    storage.move(torch.tensor([2]), torch.tensor([3]))
    assert storage.read(0, torch.tensor([3])).all()
