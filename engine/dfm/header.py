"""The header of a `.dfm` file: everything about a model but its weights. Torch-free.

Layout (safetensors): 8 bytes little-endian header length, the JSON header, the tensors. The
header maps tensor names to dtype, shape and byte range; its `__metadata__` holds strings:

    format            "dfm/1"
    model             ModelCard as JSON
    tokenizer         a `tokenizers` document (tokenizer.json)
    tokens            TokenCard as JSON
    chat_template     Jinja source, absent when the model has none
    tensors_sha256    of all bytes after the header
    header_sha256     of the header's canonical JSON without this entry
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec

from engine.errors import InvalidModelFile

FORMAT = "dfm/1"
HEADER_BYTES_MAX = 256 * 2**20
DTYPE_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "I32": 4, "I8": 1, "U8": 1}


Count = Annotated[int, msgspec.Meta(ge=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]


class RopeProfile(msgspec.Struct, frozen=True):
    """How positions become rotations; draft and verifier use the same one."""

    theta: Positive
    dimensions: Count
    scaling_factor: Positive = 1.0  # positions are divided by it
    frequency_factors: tuple[float, ...] | None = None  # each frequency is divided by its own


class Architecture(msgspec.Struct, frozen=True):
    """The shape of the network."""

    family: str  # "llama"
    layers: Count
    hidden: Count
    intermediate: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    vocab_size: Count
    context_length: Count
    norm_epsilon: Positive
    tied_embeddings: bool
    rope: RopeProfile

    @property
    def group_size(self) -> int:
        """Query heads that share one key-value head."""
        return self.heads // self.kv_heads


class TokenCard(msgspec.Struct, frozen=True):
    """The tokens that mean something to the engine."""

    eos_ids: tuple[int, ...]
    bos_id: int | None = None
    add_bos: bool = False
    control_ids: tuple[int, ...] = ()  # never part of the text


class ModelCard(msgspec.Struct, frozen=True):
    """What the model is and where it came from."""

    name: str
    architecture: Architecture
    quantisation: str  # "f32"
    source: str  # file name
    source_sha256: str
    source_types: tuple[str, ...]  # tensor types of the source, such as "Q4_1"
    licence: str | None = None


class TensorEntry(msgspec.Struct, frozen=True):
    """One tensor's place: bytes `begin` to `end`, half-open, counted from the data's start."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class Header(msgspec.Struct, frozen=True):
    """A validated header."""

    model: ModelCard
    tokens: TokenCard
    tokenizer_json: str
    chat_template: str | None
    tensors: dict[str, TensorEntry]
    tensors_sha256: str
    data_offset: int  # bytes from the start of the file
    data_bytes: int

    @property
    def checksum(self) -> str:
        """The checksum that receipts carry."""
        return f"sha256:{self.tensors_sha256}"


def header_sha256(document: dict[str, Any]) -> str:
    """Hash a header document, its own hash left out, in canonical form (sorted, compact)."""
    metadata = {k: v for k, v in document["__metadata__"].items() if k != "header_sha256"}
    canonical = msgspec.json.encode({**document, "__metadata__": metadata}, order="deterministic")
    return hashlib.sha256(canonical).hexdigest()


def read_header(path: Path | str) -> Header:
    """Read and validate the header; the tensors are not read.

    Raises InvalidModelFile for anything that is not a whole, untouched `.dfm` header.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            return _parse(path, os.fstat(file.fileno()).st_size, file)
    except OSError as error:
        raise InvalidModelFile(f"{path} cannot be read: {error.strerror}") from error


def _parse(path: Path, size: int, file: BinaryIO) -> Header:
    prefix = file.read(8)
    if prefix[:4] == b"GGUF":
        raise InvalidModelFile(f"{path} is a GGUF file: convert it with `dflash convert`")
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or not 2 <= length <= HEADER_BYTES_MAX:
        raise InvalidModelFile(f"{path} is not a .dfm file")
    raw = file.read(length)
    if len(raw) < length:
        raise InvalidModelFile(
            f"{path} is truncated: {size} bytes, the header alone needs {length + 8}"
        )
    try:
        document = msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise InvalidModelFile(f"{path} is not a .dfm file: its header is not JSON") from error
    return _validate(path, size, length, document)


def _validate(path: Path, size: int, length: int, document: Any) -> Header:
    metadata = document.get("__metadata__") if isinstance(document, dict) else None
    if not isinstance(metadata, dict) or not str(metadata.get("format", "")).startswith("dfm/"):
        raise InvalidModelFile(f"{path} is not a .dfm file: no dfm metadata in its header")
    if metadata["format"] != FORMAT:
        raise InvalidModelFile(
            f"{path} has format {metadata['format']}; this engine reads {FORMAT}"
        )
    if metadata.get("header_sha256") != header_sha256(document):
        raise InvalidModelFile(f"{path} was changed: its header does not match its checksum")
    try:
        header = Header(
            model=msgspec.json.decode(metadata["model"], type=ModelCard),
            tokens=msgspec.json.decode(metadata["tokens"], type=TokenCard),
            tokenizer_json=metadata["tokenizer"],
            chat_template=metadata.get("chat_template"),
            tensors=msgspec.convert(
                {k: v for k, v in document.items() if k != "__metadata__"},
                type=dict[str, TensorEntry],
            ),
            tensors_sha256=metadata["tensors_sha256"],
            data_offset=8 + length,
            data_bytes=size - 8 - length,
        )
    except (KeyError, msgspec.MsgspecError) as error:
        raise InvalidModelFile(f"{path} has an incomplete header: {error}") from error
    _check_extents(path, header)
    return header


def _check_extents(path: Path, header: Header) -> None:
    position = 0
    for name, entry in sorted(header.tensors.items(), key=lambda item: item[1].data_offsets):
        begin, end = entry.data_offsets
        count = 1
        for extent in entry.shape:
            count *= extent
        if begin != position or end - begin != count * DTYPE_BYTES.get(entry.dtype, 0):
            raise InvalidModelFile(f"{path} has a misplaced tensor: {name}")
        position = end
    if header.data_bytes != position:
        word = "truncated" if header.data_bytes < position else "longer than its header says"
        raise InvalidModelFile(
            f"{path} is {word}: {header.data_bytes} bytes of tensors, {position} expected"
        )
