"""Rebuilding a byte-level BPE tokenizer from GGUF metadata, as a tokenizer.json document.

The pre-tokenizer's name decides how text is split before merging. Each entry below follows the
regular expressions of llama.cpp's `llama_vocab` for that name; an unknown name is an error,
because a wrong split changes tokens without any other sign.
"""

from __future__ import annotations

import json
from typing import Any

from engine.dfm.gguf_source import GgufSource
from engine.dfm.header import TokenCard
from engine.errors import InvalidModelFile, UnsupportedModel

CONTROL, USER_DEFINED = 3, 4  # gguf.TokenType

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_BYTES = {**_GPT2, "use_regex": False}
_DIGITS = {"type": "Digits", "individual_digits": True}


def _split(pattern: str) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "gpt-2": _GPT2,
    "smollm": {"type": "Sequence", "pretokenizers": [_DIGITS, _GPT2]},
    "starcoder": {"type": "Sequence", "pretokenizers": [_DIGITS, _GPT2]},
    "llama-bpe": {"type": "Sequence", "pretokenizers": [_split(_LLAMA3_SPLIT), _BYTES]},
    "qwen2": {"type": "Sequence", "pretokenizers": [_split(_QWEN2_SPLIT), _BYTES]},
}


def read_tokenizer(source: GgufSource, vocab_size: int) -> tuple[str, TokenCard]:
    """Return a tokenizer.json document and the tokens the engine must know.

    `vocab_size` is how many tokens the model can embed; padding it beyond the tokens is common.

    Raises UnsupportedModel for another kind of tokenizer or an unknown pre-tokenizer.
    """
    kind = source.value("tokenizer.ggml.model", str)
    if kind != "gpt2":
        raise UnsupportedModel(
            f"{source.path} has a {kind!r} tokenizer; supported: gpt2 (byte-level BPE)"
        )
    name = source.value("tokenizer.ggml.pre", str)
    if name not in PRE_TOKENIZERS:
        raise UnsupportedModel(
            f"{source.path} has pre-tokenizer {name!r}; supported: {', '.join(PRE_TOKENIZERS)}"
        )
    tokens = source.value("tokenizer.ggml.tokens", list[str])
    types = source.value("tokenizer.ggml.token_type", list[int], [1] * len(tokens))
    if len(types) != len(tokens) or len(set(tokens)) != len(tokens) or len(tokens) > vocab_size:
        raise InvalidModelFile(f"{source.path} has a contradictory vocabulary")
    added = [
        {
            "id": index,
            "content": tokens[index],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": token_type == CONTROL,
        }
        for index, token_type in enumerate(types)
        if token_type in (CONTROL, USER_DEFINED)
    ]
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": PRE_TOKENIZERS[name],
        "post_processor": None,
        "decoder": _GPT2,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            # whole words that are tokens are not merged step by step, as in llama.cpp
            "ignore_merges": name == "llama-bpe",
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [
                merge.split(" ") for merge in source.value("tokenizer.ggml.merges", list[str])
            ],
        },
    }
    return json.dumps(document, ensure_ascii=False), _token_card(source, types)


def _token_card(source: GgufSource, types: list[int]) -> TokenCard:
    ends = [source.value("tokenizer.ggml.eos_token_id", int)]
    for key in ("eot", "eom"):
        end = source.find(f"tokenizer.ggml.{key}_token_id", int)
        if end is not None:
            ends.append(end)
    bos = source.find("tokenizer.ggml.bos_token_id", int)
    return TokenCard(
        eos_ids=tuple(dict.fromkeys(ends)),
        bos_id=bos,
        add_bos=bool(source.find("tokenizer.ggml.add_bos_token", bool)),
        control_ids=tuple(index for index, kind in enumerate(types) if kind == CONTROL),
    )
