"""The roofline: what a step must move and multiply, and that its parts are timed."""

from __future__ import annotations

from pathlib import Path

import pytest
from block_models import write_block_dfm
from tiny_models import TinyShape, write_tiny_dfm

from engine.bench.roofline import Machine, counted, measure_step, roofline
from engine.dfm.container import ModelFile
from engine.dfm.header import read_header
from engine.errors import UnsupportedModel
from engine.kernels.cpu.library import open_library
from engine.model.block_decoder import BlockDecoder


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_block_dfm(tmp_path_factory.mktemp("models") / "tiny.dfm", TinyShape())


def test_weights_are_read_once_whatever_the_rows_and_multiplied_for_each(path: Path) -> None:
    header = read_header(path)
    one, four = counted(header, 1, 0), counted(header, 4, 0)
    matrices = [name for name in header.tensors if "weight" in name and "norm" not in name]
    with_rows = {name: four[name][0] - one[name][0] for name in one}
    at_rest = sum(one[name][0] - with_rows[name] // 3 for name in one if name != "attend")
    file = ModelFile.open(path)
    assert at_rest == sum(file.blocks(name).nbytes for name in matrices)
    for name in one:
        if name != "attend":
            assert four[name][1] == 4 * one[name][1]
    shape = header.model.architecture
    weights = sum(file.tensor(name).size for name in matrices)
    assert one["head"][1] == shape.hidden * shape.vocab_size
    assert sum(one[name][1] for name in one if name != "attend") == weights


def test_attention_reads_the_context_once_and_multiplies_it_for_every_row(path: Path) -> None:
    header = read_header(path)
    shape = header.model.architecture
    (moved, macs), (more_moved, more_macs) = (
        counted(header, 2, context)["attend"] for context in (98, 198)
    )
    assert (more_moved, more_macs) == (2 * moved, 2 * macs)
    assert macs == shape.layers * 2 * 100 * 2 * shape.heads * shape.head_dim


def test_a_step_is_timed_part_by_part(path: Path) -> None:
    machine = Machine(copy_gb_per_s=10.0, cached_gb_per_s=20.0, int8_giga_macs_per_s=100.0)
    decoder = BlockDecoder.load(path, threads=1, kv_tokens=64)
    if open_library() is None:
        with pytest.raises(UnsupportedModel, match="native kernels"):
            measure_step(decoder, machine, 2, 40, repeats=2)
        return
    step = measure_step(decoder, machine, 2, 40, repeats=2)
    assert [part.name for part in step.parts] == [
        *("qkv", "output", "gate_up", "down", "attend", "head")
    ]
    for part in step.parts:
        assert part.bound_us == pytest.approx(max(part.bytes / 20e3, part.macs / 100e3))
        assert part.measured_us is not None
        assert part.measured_us > 0
        assert part.share == part.bound_us / part.measured_us
    assert step.other_us > 0
    assert step.bytes == sum(part.bytes for part in step.parts)


def test_a_model_that_is_not_in_blocks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="quant-type"):
        roofline(write_tiny_dfm(tmp_path / "f32.dfm"), threads=1)
