"""How an engine is set up. Names follow the command line's flags."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from engine.errors import InvalidConfig

ROLLBACK_POLICIES = ("anchor", "restart")
DEGRADE_POLICIES = ("hit_rate", "speedup", "never")
FLASH_ATTENTION_PLACES = ("verifier", "draft")  # the second only to be told why not


class Profile(NamedTuple):
    """A named choice of the parameters that belong together."""

    draft_block_size: int
    verifier_batch_size: int
    entropy_threshold: float
    # For models that want it, which none of the families computed here does: their files hold the
    # scaling they were trained with. A flag is taken at its word.
    rope_scaling_factor: float
    expert_cache_size: int  # of models with experts; 0 keeps all of them prepared


PROFILES = {
    "default": Profile(4, 1, 0.8, 1.0, 0),
    "recommended": Profile(8, 4, 1.2, 2.0, 1024),
}
SHIPPED_PROFILE = "recommended"


class EngineConfig(msgspec.Struct, frozen=True):
    """Limits and drafting parameters of one engine; see `docs/parameters.md`.

    The defaults are those of the profile that is shipped.
    """

    draft: bool = True
    draft_block_size: int = 8  # depths proposed ahead of the root, at most
    verifier_batch_size: int = 4  # full drafted blocks whose nodes share one verification
    node_budget: int = 8  # tree nodes per request, root included; 1 is plain decoding
    tree_width: int = 8  # candidates that may follow one node; 1 drafts chains
    entropy_threshold: float = 1.2  # nats; below it a rejected block's candidates are recycled
    rollback: str = "anchor"  # or "restart"
    degrade_policy: str = "speedup"  # when drafting turns itself off; or "hit_rate", "never"
    max_running: int = 32
    max_waiting: int = 256
    max_step_rows: int = 128
    prefill_chunk: int = 128
    kv_tokens: int = 16384  # capacity of the page pool, in tokens
    draft_cache_tokens: int = 1_000_000
    single_flight: bool = True  # compute what identical requests of a tenant share only once
    draft_head: str = "auto"  # what comes for the model and pays; "none"; or a head file
    backend: str = "auto"  # what is fastest here for the file's weights
    device: str = "cpu"
    threads: int | None = None  # null: one per core
    rope_scaling_factor: float = 1.0  # positions are multiplied by it before they are rotated
    expert_cache_size: int | None = None  # null: as the shipped profile has it, for experts
    use_flash_attn2: str | None = None  # "verifier"; refused where it can't be
    longest_token_length: int | None = None  # must be >= the model's context when given

    @classmethod
    def of(cls, profile: str = SHIPPED_PROFILE, /, **given: Any) -> EngineConfig:
        """Return a profile's configuration with what is `given`, nulls apart, above it.

        Raises InvalidConfig for an unknown profile.
        """
        if profile not in PROFILES:
            raise InvalidConfig(f"no profile {profile!r}; there is: {', '.join(PROFILES)}")
        chosen = PROFILES[profile]
        named = {
            "draft_block_size": chosen.draft_block_size,
            "verifier_batch_size": chosen.verifier_batch_size,
            "entropy_threshold": chosen.entropy_threshold,
            # null where it is the shipped one's: to say it of a dense model is an error
            "expert_cache_size": (None if profile == SHIPPED_PROFILE else chosen.expert_cache_size),
        }
        return cls(**named | {name: value for name, value in given.items() if value is not None})

    @property
    def experts_kept(self) -> int:
        """How many experts are kept prepared, of a model that has some; 0 is all of them."""
        if self.expert_cache_size is None:
            return PROFILES[SHIPPED_PROFILE].expert_cache_size
        return self.expert_cache_size

    @property
    def max_live(self) -> int:
        """Requests that may run or wait at once; every running one has a row in every step."""
        return min(self.max_running, self.max_step_rows) + self.max_waiting
