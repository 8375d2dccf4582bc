"""Writing and mapping `.dfm` files. Torch-free; see `engine.dfm.header` for the layout."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from engine.dfm.header import FORMAT, Header, ModelCard, TokenCard, header_sha256, read_header
from engine.errors import InvalidModelFile

FloatArray = npt.NDArray[np.float32]
ALIGNMENT_BYTES = 64  # a cache line, and the widest vector register


@dataclass(frozen=True, slots=True)
class PendingTensor:
    """A tensor whose shape is known and whose values are made when they are written."""

    name: str
    shape: tuple[int, ...]
    values: Callable[[], FloatArray]


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
        """Return a float32 view of one tensor. Raises InvalidModelFile when there is none."""
        entry = self.header.tensors.get(name)
        if entry is None:
            raise InvalidModelFile(f"{self.path} has no tensor {name}")
        if entry.dtype != "F32":
            raise InvalidModelFile(f"{self.path}: tensor {name} is {entry.dtype}, not F32")
        begin, end = entry.data_offsets
        array = np.frombuffer(
            self._mapping,
            dtype="<f4",
            count=(end - begin) // 4,
            offset=self.header.data_offset + begin,
        )
        return array.reshape(entry.shape)


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
        end = position + 4 * int(np.prod(tensor.shape))
        document[tensor.name] = {
            "dtype": "F32",
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


def _data(pending: Iterable[PendingTensor]) -> Iterator[bytes]:
    for tensor in pending:
        values = tensor.values()
        if values.shape != tensor.shape:
            raise InvalidModelFile(
                f"{tensor.name} has shape {values.shape}; the architecture says {tensor.shape}"
            )
        yield np.ascontiguousarray(values, dtype="<f4").tobytes()


def _encoded(document: dict[str, Any]) -> bytes:
    raw = msgspec.json.encode(document)
    raw += b" " * (-(len(raw) + 8) % ALIGNMENT_BYTES)
    return len(raw).to_bytes(8, "little") + raw
