"""Tiny random models, dense and of experts, as GGUF and as .dfm, with a tiny byte-level BPE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from engine.dfm.conversion import convert_gguf

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' "
    "+ message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("t h", "th e", "Ġ the", "i n", "a n", "an d", "Ġ and", "e r", "o n", "r e")


@dataclass(frozen=True)
class TinyShape:
    """The network's shape; the defaults have grouped heads and a few thousand weights."""

    layers: int = 2
    hidden: int = 32
    intermediate: int = 64
    heads: int = 4
    kv_heads: int = 2
    context_length: int = 512
    tied_embeddings: bool = True
    biases: bool = False
    vocab_size: int | None = None  # rows of the embedding; as many as there are tokens
    theta: float | None = 10_000.0
    seed: int = 0
    experts: int = 0  # of each layer, `used` of them by a row; 0 is dense
    used: int = 2
    shared: int | None = None  # width of the expert that every row takes
    hashed: int = 0  # first layers whose experts a table names by token

    @property
    def family(self) -> str:
        """The architecture's name in GGUF."""
        return "qwen2moe" if self.shared else "llama"


def byte_characters() -> list[str]:
    """The 256 characters that byte-level BPE writes bytes as, in byte order (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {byte: chr(byte) for byte in printable}
    for extra, byte in enumerate(byte for byte in range(256) if byte not in table):
        table[byte] = chr(256 + extra)
    return [table[byte] for byte in range(256)]


def vocabulary() -> list[str]:
    """Control tokens, all bytes, the merged tokens."""
    return [*CONTROL_TOKENS, *byte_characters(), *(merge.replace(" ", "") for merge in MERGES)]


def write_tiny_gguf(
    path: Path,
    shape: TinyShape = TinyShape(),
    *,
    architecture: str | None = None,
    pre_tokenizer: str = "smollm",
    quantisation: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    chat_template: str | None = CHAT_TEMPLATE,
    add_bos: bool = False,
    without: Sequence[str] = (),
    extra: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    weights: dict[str, np.ndarray] | None = None,
) -> Path:
    """Write a random model of this shape; the same shape gives the same bytes.

    `without` leaves tensors out, `extra` adds metadata, `weights` are used instead of random ones.
    """
    writer = gguf.GGUFWriter(path, architecture or shape.family)
    writer.add_name("tiny")
    writer.add_context_length(shape.context_length)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.used)
    if shape.shared:
        writer.add_expert_feed_forward_length(shape.intermediate)
        writer.add_expert_shared_feed_forward_length(shape.shared)
    if shape.theta is not None:
        writer.add_rope_freq_base(shape.theta)
    tokens = vocabulary()
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(CONTROL_TOKENS) + [1] * (len(tokens) - len(CONTROL_TOKENS)))
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(add_bos)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    extra(writer)
    for name, values in (weights or random_weights(shape)).items():
        if name in without:
            continue
        routes = "gate_inp" in name or "tid2eid" in name
        if values.ndim > 1 and not routes and quantisation != gguf.GGMLQuantizationType.F32:
            writer.add_tensor(
                name, gguf.quants.quantize(values, quantisation), raw_dtype=quantisation
            )
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_tiny_dfm(path: Path, shape: TinyShape = TinyShape()) -> Path:
    """Write a random model of this shape as .dfm, through the converter."""
    source = write_tiny_gguf(path.with_suffix(".gguf"), shape)
    return convert_gguf(source, path, quant_type="f32")


def random_weights(shape: TinyShape) -> dict[str, np.ndarray]:
    """Weights under their GGUF names, scaled so that activations stay near one."""
    random = np.random.default_rng(shape.seed)
    head_dim = shape.hidden // shape.heads
    vocab_size = shape.vocab_size or len(vocabulary())

    def matrix(rows: int, columns: int, stack: tuple[int, ...] = ()) -> np.ndarray:
        values = random.standard_normal((*stack, rows, columns)) / np.sqrt(columns)
        return values.astype(np.float32)

    def vector(size: int) -> np.ndarray:
        return (1 + 0.1 * random.standard_normal(size)).astype(np.float32)

    def swiglu(block: str, kind: str, width: int, stack: tuple[int, ...] = ()) -> dict[str, Any]:
        return {
            f"{block}.ffn_{part}{kind}.weight": matrix(*extent, stack)
            for part, extent in (
                ("gate", (width, shape.hidden)),
                ("up", (width, shape.hidden)),
                ("down", (shape.hidden, width)),
            )
        }

    def feed_forward(block: str) -> dict[str, np.ndarray]:
        if not shape.experts:
            return swiglu(block, "", shape.intermediate)
        weights = {
            f"{block}.ffn_gate_inp.weight": matrix(shape.experts, shape.hidden),
            **swiglu(block, "_exps", shape.intermediate, (shape.experts,)),
        }
        if shape.shared:
            weights[f"{block}.ffn_gate_inp_shexp.weight"] = matrix(1, shape.hidden)[0]
            weights |= swiglu(block, "_shexp", shape.shared)
        return weights

    weights = {
        "token_embd.weight": (4 * matrix(vocab_size, shape.hidden)).astype(np.float32),
        "output_norm.weight": vector(shape.hidden),
    }
    if not shape.tied_embeddings:
        weights["output.weight"] = matrix(vocab_size, shape.hidden)
    for layer in range(shape.layers):
        block = f"blk.{layer}"
        query, key_value = shape.heads * head_dim, shape.kv_heads * head_dim
        weights |= {
            f"{block}.attn_norm.weight": vector(shape.hidden),
            f"{block}.attn_q.weight": 2 * matrix(query, shape.hidden),
            f"{block}.attn_k.weight": 2 * matrix(key_value, shape.hidden),
            f"{block}.attn_v.weight": matrix(key_value, shape.hidden),
            f"{block}.attn_output.weight": matrix(shape.hidden, query),
            f"{block}.ffn_norm.weight": vector(shape.hidden),
        }
        weights |= feed_forward(block)
        if layer < shape.hashed:
            first = np.arange(vocab_size)[:, None] + layer
            table = (first + np.arange(shape.used)) % shape.experts
            weights[f"{block}.ffn_gate_tid2eid.weight"] = table.astype(np.int32)
        if shape.biases:
            for part, size in (("q", query), ("k", key_value), ("v", key_value)):
                weights[f"{block}.attn_{part}.bias"] = vector(size) - 1
            if shape.family == "llama":
                weights[f"{block}.attn_output.bias"] = vector(shape.hidden) - 1
    return weights
