"""What `/v1` answers: OpenAI's objects, with the cost and our own figures beside its usage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api.inference.schemas import GenerationView
from metering.protocols import CommittedBlock

# OpenAI knows no budget, deadline or cancellation; its clients read "length" as "cut short".
FINISH_REASONS: Mapping[str, str] = {
    "stop": "stop",
    "length": "length",
    "budget": "length",
    "deadline": "length",
    "cancelled": "length",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """How one endpoint dresses text."""

    id_prefix: str
    whole: str  # `object` of a complete answer
    chunk: str  # `object` of a streamed part
    chat: bool

    def answer(self, view: GenerationView, blocks: list[CommittedBlock] | None) -> dict[str, Any]:
        """A complete answer; `blocks` are given when log-probabilities were asked for."""
        logprobs = None if blocks is None else _logprobs(blocks)
        text = view.output or ""
        choice: dict[str, Any] = {
            "index": 0,
            "finish_reason": finish_reason(view),
            "logprobs": logprobs,
        }
        if self.chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        return {
            **self._head(view.id, view.model, self.whole),
            "choices": [choice],
            "usage": usage(view),
        }

    def part(
        self,
        request_id: str,
        model: str,
        *,
        text: str | None = None,
        first: bool = False,
        finish: str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """One streamed part: text, or the finish reason."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "logprobs": logprobs}
        if self.chat:
            delta: dict[str, Any] = {"role": "assistant"} if first else {}
            if text is not None:
                delta["content"] = text
            choice["delta"] = delta
        else:
            choice["text"] = text or ""
        return {**self._head(request_id, model, self.chunk), "choices": [choice], "usage": None}

    def usage_part(self, view: GenerationView) -> dict[str, Any]:
        """The part before `[DONE]`: no choices, the usage and what it cost."""
        return {
            **self._head(view.id, view.model, self.chunk),
            "choices": [],
            "usage": usage(view),
        }

    def _head(self, request_id: str, model: str, kind: str) -> dict[str, Any]:
        # The id's first 48 bits are the admission's epoch milliseconds (UUID version 7).
        created_s = int(request_id.removeprefix("req_")[:12], 16) // 1000
        return {
            "id": f"{self.id_prefix}{request_id}",
            "object": kind,
            "created": created_s,
            "model": model,
        }


CHAT = Shape("chatcmpl-", "chat.completion", "chat.completion.chunk", chat=True)
TEXT = Shape("cmpl-", "text_completion", "text_completion", chat=False)


def finish_reason(view: GenerationView) -> str:
    """The finish reason in OpenAI's words."""
    return FINISH_REASONS.get(view.finish_reason or "", "length")


def usage(view: GenerationView) -> dict[str, Any] | None:
    """Token counts in OpenAI's names, the cost, and what only we meter."""
    if view.usage is None:
        return None
    return {
        "prompt_tokens": view.usage.input_tokens,
        "completion_tokens": view.usage.output_tokens,
        "total_tokens": view.usage.input_tokens + view.usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": view.usage.cached_input_tokens},
        "cost": None if view.cost is None else float(view.cost),  # a number, as others send it
        "dflash": {
            "generation_id": view.id,
            "status": view.status,
            "finish_reason": view.finish_reason,
            "cost": view.cost,
            "currency": view.currency,
            "complete_units": view.usage.complete_units,
            "fragment_units": view.usage.fragment_units,
            "information_bits": view.usage.information_bits,
            "joules": view.usage.joules,
            "energy_class": view.usage.energy_class,
            "confidence": view.confidence,
            "receipt_sha256": None if view.receipt is None else view.receipt["sha256"],
        },
    }


def block_logprobs(block: CommittedBlock) -> list[dict[str, Any]]:
    """The block's tokens with their raw log-probabilities; tokens without text are left out."""
    return [
        {
            "token": piece.decode(errors="replace"),
            "bytes": list(piece),
            "logprob": unats / 1e6,
            "top_logprobs": [],
        }
        for piece, unats in zip(block.pieces, block.logprobs_unats, strict=True)
        if piece and unats is not None
    ]


def _logprobs(blocks: list[CommittedBlock]) -> dict[str, Any]:
    return {
        "content": [entry for block in blocks for entry in block_logprobs(block)],
        "refusal": None,
    }
