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
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0


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
