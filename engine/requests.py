"""What the engine is asked to do. Torch-free, so that the gateway can speak it."""

from __future__ import annotations

import msgspec

# Whose outputs a request's drafts are taken from, and to whose its own are added: its tenant's, or
# those of all requests, of whatever tenant, that chose "public". Their owners may learn of each
# other's texts from how fast their own appear: whoever chooses it agrees to that.
DRAFT_SCOPES = ("tenant", "public")


class SamplingParams(msgspec.Struct, frozen=True):
    """How the verifier draws a token. Temperature 0 is greedy, ties to the lowest id.

    The draft layer never sees these: they change what is emitted, drafting changes only when.
    Penalties and biases change the logits before the temperature does, in the order in which they
    stand here. A penalty of nothing (1 for repetition, 0 for the others) costs nothing.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0  # divides a positive logit; prompt and output count
    frequency_penalty: float = 0.0  # taken off once per occurrence in the output
    presence_penalty: float = 0.0  # taken off once if it occurs in the output
    logit_bias: tuple[tuple[int, float], ...] = ()  # added: token id, bias; no id twice


class GenerationRequest(msgspec.Struct, frozen=True):
    """One sequence to continue.

    `tenant_id` scopes the prefix and draft caches: nothing computed for one tenant is ever
    visible, even as a change of timing, to another, unless both chose the public draft scope.
    """

    request_id: str
    tenant_id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams = SamplingParams()
    stop: tuple[str, ...] = ()
    draft: bool = True
    draft_scope: str = "tenant"  # or "public"; see DRAFT_SCOPES
    ignore_eos: bool = False
    deadline_ns: int | None = None  # CLOCK_MONOTONIC; past it the request ends as DEADLINE
    choice: int = 0  # among answers to one prompt under one seed: each has its own uniforms
    top_logprobs: int = 0  # alternatives reported beside each token, by raw log-probability
    json_schema: str | None = None  # JSON text: the output must satisfy it; see `engine.grammar`
