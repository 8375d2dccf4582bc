"""The header of a `.dfm` file: everything about a model but its weights. Torch-free.

Layout (safetensors): 8 bytes little-endian header length, the JSON header, the tensors. The
header maps tensor names to dtype, shape and byte range; its `__metadata__` holds strings:

    format            "dfm/1"
    model             ModelCard as JSON
    tokenizer         a `tokenizers` document (tokenizer.json)
    tokens            TokenCard as JSON
    chat_template     Jinja source, absent when the model has none
    expert_heat       how often each expert was chosen [layers, experts], absent until profiled
    tensors_sha256    of all bytes after the header
    header_sha256     of the header's canonical JSON without this entry
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec

from engine.errors import InvalidModelFile, UnsupportedModel

FORMAT = "dfm/1"
FAMILIES = ("llama", "qwen2moe")  # the networks that `engine.model` computes
HEADER_BYTES_MAX = 256 * 2**20
DTYPE_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "I32": 4, "I8": 1, "U8": 1}
ROTARY_ELEMENTS_MAX = 2**28  # positions times head dimensions: tables of 1 GiB

# Far beyond any model of these families, and near enough that a size computed from them stays one.
Layers = Annotated[int, msgspec.Meta(ge=1, le=1024)]
Width = Annotated[int, msgspec.Meta(ge=1, le=2**16)]
InnerWidth = Annotated[int, msgspec.Meta(ge=1, le=2**20)]
Heads = Annotated[int, msgspec.Meta(ge=1, le=1024)]
HashedLayers = Annotated[int, msgspec.Meta(ge=0, le=1024)]
ExpertCount = Annotated[int, msgspec.Meta(ge=1, le=4096)]
HeadDim = Annotated[int, msgspec.Meta(ge=2, le=1024, multiple_of=2)]  # rotated in pairs
Vocabulary = Annotated[int, msgspec.Meta(ge=1, le=2**21)]
Context = Annotated[int, msgspec.Meta(ge=1, le=2**24)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Extent = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Theta = Annotated[float, msgspec.Meta(gt=1, le=1e12)]
Epsilon = Annotated[float, msgspec.Meta(gt=0, le=1)]
Factor = Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)]


class RopeProfile(msgspec.Struct, frozen=True):
    """How positions become rotations; draft and verifier use the same one."""

    theta: Theta
    dimensions: HeadDim
    scaling_factor: Factor = 1.0  # positions are divided by it
    frequency_factors: tuple[Factor, ...] | None = None  # each frequency is divided by its own


class Experts(msgspec.Struct, frozen=True):
    """A mixture's feed-forward blocks: each row takes the few that its layer's router chooses."""

    count: ExpertCount  # in each layer
    used: ExpertCount  # by a row
    normalised: bool  # the weights of those used sum to one
    shared_intermediate: InnerWidth | None = None  # of the expert that every row takes, if any
    hashed: HashedLayers = 0  # so many first layers have a table, not a router, choose by token


class Architecture(msgspec.Struct, frozen=True):
    """The shape of the network."""

    family: str  # one of FAMILIES
    layers: Layers
    hidden: Width
    intermediate: InnerWidth  # of one expert, where there are some
    heads: Heads
    kv_heads: Heads
    head_dim: HeadDim
    vocab_size: Vocabulary
    context_length: Context
    norm_epsilon: Epsilon
    tied_embeddings: bool
    rope: RopeProfile
    experts: Experts | None = None  # null: dense

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


Cards = tuple[ModelCard, TokenCard]
Heat = tuple[tuple[int, ...], ...]  # [L, E]: by how many rows each expert was chosen


class TensorEntry(msgspec.Struct, frozen=True):
    """One tensor's place: bytes `begin` to `end`, half-open, counted from the data's start."""

    dtype: str
    shape: Annotated[tuple[Extent, ...], msgspec.Meta(min_length=1, max_length=4)]
    data_offsets: tuple[Offset, Offset]


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
    expert_heat: Heat | None = None  # null until it is profiled

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

    Raises InvalidModelFile for anything that is not a whole, untouched `.dfm` header of a model
    that can be; UnsupportedModel for a family that the engine does not implement.
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
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
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
    try:
        digest = header_sha256(document)
    except (msgspec.MsgspecError, OverflowError, RecursionError) as error:
        raise InvalidModelFile(f"{path} is not a .dfm file: {error}") from error
    if metadata.get("header_sha256") != digest:
        raise InvalidModelFile(f"{path} was changed: its header does not match its checksum")
    try:
        strings = msgspec.convert(metadata, type=dict[str, str])
        model, tokens = read_cards(path, strings["model"], strings["tokens"])
        header = Header(
            model=model,
            tokens=tokens,
            tokenizer_json=strings["tokenizer"],
            chat_template=strings.get("chat_template"),
            tensors=msgspec.convert(
                {k: v for k, v in document.items() if k != "__metadata__"},
                type=dict[str, TensorEntry],
            ),
            tensors_sha256=strings["tensors_sha256"],
            data_offset=8 + length,
            data_bytes=size - 8 - length,
            expert_heat=_read_heat(path, strings.get("expert_heat"), model.architecture),
        )
    except (KeyError, msgspec.MsgspecError) as error:
        raise InvalidModelFile(f"{path} has an incomplete header: {error}") from error
    _check_extents(path, header)
    return header


def read_cards(path: Path, model_json: str | bytes, tokens_json: str | bytes) -> Cards:
    """Return the two cards of the file at `path`, checked against their bounds and each other.

    Raises InvalidModelFile or UnsupportedModel.
    """
    try:
        model = msgspec.json.decode(model_json, type=ModelCard)
        tokens = msgspec.json.decode(tokens_json, type=TokenCard)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidModelFile(f"{path} does not describe a model: {error}") from error
    shape = model.architecture
    if shape.family not in FAMILIES:
        raise UnsupportedModel(
            f"{path} has architecture {shape.family!r}; supported: {', '.join(FAMILIES)}"
        )
    experts = shape.experts
    factors, special = shape.rope.frequency_factors, {*tokens.eos_ids, *tokens.control_ids}
    if tokens.bos_id is not None:
        special.add(tokens.bos_id)
    for is_so, contradiction in (
        (shape.heads % shape.kv_heads != 0, "its heads do not share key-value heads evenly"),
        (shape.rope.dimensions != shape.head_dim, "its rotation is not as wide as its heads"),
        (
            shape.context_length * shape.head_dim > ROTARY_ELEMENTS_MAX,
            "its context is too long for heads so wide",
        ),
        (
            factors is not None and 2 * len(factors) != shape.head_dim,
            "it has not one frequency factor per pair of dimensions",
        ),
        (
            experts is not None and experts.used > experts.count,
            "a row uses more experts than there are",
        ),
        (
            experts is not None and experts.hashed > shape.layers,
            "more of its layers are hashed than there are",
        ),
        (not tokens.eos_ids, "no token ends its text"),
        (
            not all(0 <= token < shape.vocab_size for token in special),
            "a special token lies outside its vocabulary",
        ),
    ):
        if is_so:
            raise InvalidModelFile(f"{path} does not describe a model: {contradiction}")
    return model, tokens


def _read_heat(path: Path, text: str | None, shape: Architecture) -> Heat | None:
    if text is None:
        return None
    rows = msgspec.json.decode(text, type=tuple[tuple[Count, ...], ...])
    experts = 0 if shape.experts is None else shape.experts.count
    if [len(row) for row in rows] != [experts] * shape.layers:
        raise InvalidModelFile(f"{path} has a heat map that is not of its experts")
    return rows


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
