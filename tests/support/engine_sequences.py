"""Requests and sequences for tests of the scheduler and the loop."""

from __future__ import annotations

from itertools import count

from engine.cache.page_table import PageTable
from engine.cache.pages import PagePool
from engine.requests import GenerationRequest, SamplingParams
from engine.scheduler.sequence import Sequence

_ids = count()


def request(
    prompt: list[int] | tuple[int, ...] = (1, 2, 3),
    max_tokens: int = 8,
    *,
    request_id: str | None = None,
    tenant_id: str = "tenant",
    sampling: SamplingParams | None = None,
    stop: tuple[str, ...] = (),
    draft: bool = True,
    draft_scope: str = "tenant",
    ignore_eos: bool = False,
    deadline_ns: int | None = None,
    json_schema: str | None = None,
    top_logprobs: int = 0,
) -> GenerationRequest:
    """A request with an id of its own."""
    return GenerationRequest(
        request_id=request_id or f"request-{next(_ids)}",
        tenant_id=tenant_id,
        prompt_ids=tuple(prompt),
        max_tokens=max_tokens,
        sampling=sampling or SamplingParams(),
        stop=stop,
        draft=draft,
        draft_scope=draft_scope,
        ignore_eos=ignore_eos,
        deadline_ns=deadline_ns,
        json_schema=json_schema,
        top_logprobs=top_logprobs,
    )


def sequence(pool: PagePool, arrival: int, prompt_length: int = 3, max_tokens: int = 8) -> Sequence:
    """A live sequence whose prompt nobody else shares."""
    prompt = [1000 * arrival + at for at in range(prompt_length)]
    return Sequence(request(prompt, max_tokens), PageTable(pool, "tenant"), arrival)
