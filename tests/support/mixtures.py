"""Tiny mixtures of experts: as .dfm, and as the models of `transformers` with the same weights."""

from __future__ import annotations

from typing import Any

import torch
from tiny_models import TinyShape, random_weights, vocabulary
from torch import Tensor
from transformers import MixtralConfig, MixtralForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM

MIXTRAL = TinyShape(experts=8, used=2, tied_embeddings=False)
QWEN2_MOE = TinyShape(experts=6, used=3, shared=96, biases=True, seed=4)
# synthetic: no published model of these families has hashed layers
HASHED = TinyShape(experts=6, used=2, hashed=1, seed=7)
MIXTURES = {"mixtral": MIXTRAL, "qwen2-moe": QWEN2_MOE}


def reference_logits(shape: TinyShape, token_ids: list[int]) -> Tensor:
    """Return what `transformers` makes of a sequence: logits [T, vocab]."""
    model = _qwen2_moe(shape) if shape.shared else _mixtral(shape)
    state = _state(shape)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"} if shape.tied_embeddings else not missing
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0]


def _mixtral(shape: TinyShape) -> MixtralForCausalLM:
    return MixtralForCausalLM(
        MixtralConfig(
            **_common(shape), num_local_experts=shape.experts, intermediate_size=shape.intermediate
        )
    ).eval()


def _qwen2_moe(shape: TinyShape) -> Qwen2MoeForCausalLM:
    return Qwen2MoeForCausalLM(
        Qwen2MoeConfig(
            **_common(shape),
            num_experts=shape.experts,
            moe_intermediate_size=shape.intermediate,
            shared_expert_intermediate_size=shape.shared,
            norm_topk_prob=False,
        )
    ).eval()


def _common(shape: TinyShape) -> dict[str, Any]:
    return {
        "vocab_size": len(vocabulary()),
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "num_experts_per_tok": shape.used,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.theta},
        "tie_word_embeddings": shape.tied_embeddings,
        "max_position_embeddings": shape.context_length,
        "attn_implementation": "eager",
    }


def _state(shape: TinyShape) -> dict[str, Tensor]:
    """Rename GGUF's tensors; llama.cpp's order of query and key rows is taken back, if it is."""
    weights = {name: torch.from_numpy(values) for name, values in random_weights(shape).items()}
    state = {
        "model.embed_tokens.weight": weights["token_embd.weight"],
        "model.norm.weight": weights["output_norm.weight"],
    }
    if not shape.tied_embeddings:
        state["lm_head.weight"] = weights["output.weight"]
    for layer in range(shape.layers):
        own = {
            name.removeprefix(f"blk.{layer}."): values
            for name, values in weights.items()
            if name.startswith(f"blk.{layer}.")
        }
        prefix = f"model.layers.{layer}"
        state[f"{prefix}.input_layernorm.weight"] = own["attn_norm.weight"]
        state[f"{prefix}.post_attention_layernorm.weight"] = own["ffn_norm.weight"]
        for ours, theirs in (
            ("q", "q_proj"),
            ("k", "k_proj"),
            ("v", "v_proj"),
            ("output", "o_proj"),
        ):
            for kind in ("weight", "bias"):
                if (values := own.get(f"attn_{ours}.{kind}")) is not None:
                    heads = {"q": shape.heads, "k": shape.kv_heads}.get(ours)
                    if heads and shape.family == "llama":
                        values = values.view(heads, -1, 2, *values.shape[1:]).transpose(1, 2)
                        values = values.flatten(0, 2)
                    state[f"{prefix}.self_attn.{theirs}.{kind}"] = values
        mlp = f"{prefix}.mlp"
        state[f"{mlp}.gate.weight"] = own["ffn_gate_inp.weight"]
        gates, ups = own["ffn_gate_exps.weight"], own["ffn_up_exps.weight"]
        state[f"{mlp}.experts.gate_up_proj"] = torch.cat([gates, ups], dim=1)
        state[f"{mlp}.experts.down_proj"] = own["ffn_down_exps.weight"]
        if shape.shared:
            state[f"{mlp}.shared_expert_gate.weight"] = own["ffn_gate_inp_shexp.weight"][None]
            for part in ("gate", "up", "down"):
                state[f"{mlp}.shared_expert.{part}_proj.weight"] = own[f"ffn_{part}_shexp.weight"]
    return state
