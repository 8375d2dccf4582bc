"""How an engine is set up. Names follow the command line's flags."""

from __future__ import annotations

import msgspec

ROLLBACK_POLICIES = ("anchor", "restart")


class EngineConfig(msgspec.Struct, frozen=True):
    """Limits and drafting parameters of one engine; see `docs/parameters.md`."""

    draft: bool = True
    draft_block_size: int = 8  # depths proposed ahead of the root, at most
    verifier_batch_size: int = 4  # requests whose drafted blocks share one verification
    node_budget: int = 8  # tree nodes per request, root included; 1 is plain decoding
    entropy_threshold: float = 1.2  # nats; below it a rejected block's candidates are recycled
    rollback: str = "anchor"  # or "restart"
    max_running: int = 32
    max_waiting: int = 256
    max_step_rows: int = 64
    prefill_chunk: int = 48
    kv_tokens: int = 16384  # capacity of the page pool, in tokens
    draft_cache_tokens: int = 1_000_000
    single_flight: bool = True  # compute what identical requests of a tenant share only once
    backend: str = "auto"  # what is fastest here for the file's weights
    device: str = "cpu"
    threads: int | None = None  # null: one per core
    longest_token_length: int | None = None  # must be >= the model's context when given

    @property
    def max_live(self) -> int:
        """Requests that may run or wait at once; every running one has a row in every step."""
        return min(self.max_running, self.max_step_rows) + self.max_waiting
