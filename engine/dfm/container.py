"""Writing and mapping `.dfm` files. Torch-free; see `engine.dfm.header` for the layout."""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from engine.dfm.blocks import BLOCK_BYTES, GROUP, Bytes, FloatArray, Indices, dequantise
from engine.dfm.header import (
    DTYPE_BYTES,
    FORMAT,
    Header,
    Heat,
    ModelCard,
    TensorEntry,
    TokenCard,
    header_sha256,
    read_header,
)
from engine.errors import InvalidModelFile

ALIGNMENT_BYTES = 64  # a cache line, and the widest vector register
_COPIED_BYTES = 1 << 24  # at once
_NUMPY = {"F32": "<f4", "I32": "<i4", "U8": "u1"}


@dataclass(frozen=True, slots=True)
class PendingTensor:
    """A tensor whose shape is known and whose values are made when they are written."""

    name: str
    shape: tuple[int, ...]
    values: Callable[[], FloatArray | Bytes | Indices]
    dtype: str = "F32"  # or "U8": blocks, see `engine.dfm.blocks`; or "I32"


class ModelFile:
    """A mapped `.dfm`. Tensors are views of the mapping, valid while they are referenced."""

    def __init__(self, path: Path, header: Header, mapping: mmap.mmap) -> None:
        self.path = path
        self.header = header
        self._mapping = mapping

    @classmethod
    def open(cls, path: Path | str) -> ModelFile:
        """Map the file and validate its header and sizes; the tensors are not read.

        Raises InvalidModelFile.
        """
        path = Path(path)
        header = read_header(path)
        with path.open("rb") as file:
            # a private mapping: writable to numpy and torch, never written back
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return cls(path, header, mapping)

    def verify(self) -> None:
        """Hash every tensor byte. Raises InvalidModelFile when one was changed."""
        with memoryview(self._mapping) as view, view[self.header.data_offset :] as data:
            digest = hashlib.sha256(data).hexdigest()
        if digest != self.header.tensors_sha256:
            raise InvalidModelFile(
                f"{self.path} was changed: its tensors do not match their checksum"
            )

    def tensor(self, name: str) -> FloatArray:
        """Return one tensor in float32: a view, or what its blocks stand for.

        Raises InvalidModelFile when there is none.
        """
        entry = self._entry(name)
        if entry.dtype == "U8":
            return dequantise(self.blocks(name))
        if entry.dtype != "F32":
            raise InvalidModelFile(f"{self.path}: tensor {name} is {entry.dtype}, not F32")
        return self._bytes(entry).view("<f4").reshape(entry.shape)

    def integers(self, name: str) -> Indices:
        """Return a view of a table of int32. Raises InvalidModelFile when there is none."""
        entry = self._entry(name)
        if entry.dtype != "I32":
            raise InvalidModelFile(f"{self.path}: tensor {name} is {entry.dtype}, not I32")
        return self._bytes(entry).view("<i4").reshape(entry.shape)

    def will_need(self, name: str) -> None:
        """Ask the system to read a tensor from the disk while something else is done."""
        begin, end = (self.header.data_offset + at for at in self._entry(name).data_offsets)
        first = begin // mmap.PAGESIZE * mmap.PAGESIZE
        self._mapping.madvise(mmap.MADV_WILLNEED, first, end - first)

    @property
    def in_blocks(self) -> bool:
        """Whether the projections are kept in blocks."""
        return self.has_blocks("layers.0.attention.qkv.weight")

    def has_blocks(self, name: str) -> bool:
        """Tell whether a tensor is kept in blocks. Raises InvalidModelFile when there is none."""
        return self._entry(name).dtype == "U8"

    def extent(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape, in weights. Raises InvalidModelFile as `blocks` does."""
        if self.has_blocks(name):
            outputs, groups, _ = self.blocks(name).shape
            return outputs, groups * GROUP
        return self._entry(name).shape

    def blocks(self, name: str) -> Bytes:
        """Return a view of a tensor's blocks [N, K / 32, B], as `engine.dfm.blocks` knows them.

        Raises InvalidModelFile when there is none, or when it is no tensor in blocks.
        """
        entry = self._entry(name)
        if entry.dtype != "U8" or len(entry.shape) != 3 or entry.shape[2] not in BLOCK_BYTES:
            raise InvalidModelFile(f"{self.path}: tensor {name} is not in blocks")
        return self._bytes(entry).reshape(entry.shape)

    def _entry(self, name: str) -> TensorEntry:
        try:
            return self.header.tensors[name]
        except KeyError:
            raise InvalidModelFile(f"{self.path} has no tensor {name}") from None

    def _bytes(self, entry: TensorEntry) -> Bytes:
        begin, end = entry.data_offsets
        offset = self.header.data_offset + begin
        return np.frombuffer(self._mapping, dtype=np.uint8, count=end - begin, offset=offset)


def write_dfm(
    path: Path,
    *,
    model: ModelCard,
    tokens: TokenCard,
    tokenizer_json: str,
    chat_template: str | None,
    tensors: Iterable[PendingTensor],
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write a `.dfm`, one tensor in memory at a time; `path` appears only when it is whole.

    `progress` hears (bytes written, bytes in all).
    """
    pending = list(tensors)
    document: dict[str, Any] = {
        "__metadata__": {
            "format": FORMAT,
            "model": msgspec.json.encode(model).decode(),
            "tokens": msgspec.json.encode(tokens).decode(),
            "tokenizer": tokenizer_json,
            "tensors_sha256": "0" * 64,
            "header_sha256": "0" * 64,
        }
    }
    if chat_template is not None:
        document["__metadata__"]["chat_template"] = chat_template
    position = 0
    for tensor in pending:
        end = position + DTYPE_BYTES[tensor.dtype] * int(np.prod(tensor.shape))
        document[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [position, end],
        }
        position = end
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            # both hashes have a fixed length, so the header can be written again in place
            file.write(_encoded(document))
            digest = hashlib.sha256()
            for data in _data(pending):
                digest.update(data)
                file.write(data)
                if progress is not None:
                    progress(file.tell() - len(_encoded(document)), position)
            document["__metadata__"]["tensors_sha256"] = digest.hexdigest()
            document["__metadata__"]["header_sha256"] = header_sha256(document)
            file.seek(0)
            file.write(_encoded(document))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_heat(path: Path, heat: Heat) -> None:
    """Put a routing heat map into a `.dfm`'s header; its tensors and checksum stay.

    The file is written anew beside itself, and replaced when it is whole. Raises InvalidModelFile.
    """
    header = read_header(path)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with path.open("rb") as source, partial.open("wb") as target:
            document = msgspec.json.decode(source.read(header.data_offset)[8:])
            metadata = document["__metadata__"]
            metadata["expert_heat"] = msgspec.json.encode(heat).decode()
            metadata["header_sha256"] = header_sha256(document)
            target.write(_encoded(document))
            shutil.copyfileobj(source, target, _COPIED_BYTES)
        read_header(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _data(pending: Iterable[PendingTensor]) -> Iterator[bytes]:
    for tensor in pending:
        values = tensor.values()
        if values.shape != tensor.shape:
            raise InvalidModelFile(
                f"{tensor.name} has shape {values.shape}; the architecture says {tensor.shape}"
            )
        yield np.ascontiguousarray(values, dtype=_NUMPY[tensor.dtype]).tobytes()


def _encoded(document: dict[str, Any]) -> bytes:
    raw = msgspec.json.encode(document)
    raw += b" " * (-(len(raw) + 8) % ALIGNMENT_BYTES)
    return len(raw).to_bytes(8, "little") + raw
