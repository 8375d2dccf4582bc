"""What `/v1` answers: OpenAI's objects, with the cost and our own figures beside its usage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from api.inference.schemas import GenerationView
from metering.bodies import Likely
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
        text = view.output or ""
        choice: dict[str, Any] = {
            "index": 0,
            "finish_reason": finish_reason(view),
            "logprobs": None if blocks is None else self.logprobs(blocks),
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

    def logprobs(self, blocks: Sequence[CommittedBlock], first_offset: int = 0) -> dict[str, Any]:
        """The raw log-probabilities of blocks; `first_offset` characters of text precede them."""
        return _chat_logprobs(blocks) if self.chat else _text_logprobs(blocks, first_offset)

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
        "cost": None if view.cost is None else float(view.cost),  # a number, as others send it
        "dflash": {
            "generation_id": view.id,
            "status": view.status,
            "finish_reason": view.finish_reason,
            "cost": view.cost,
            "currency": view.currency,
            "forced_tokens": view.usage.forced_tokens,
            "complete_units": view.usage.complete_units,
            "fragment_units": view.usage.fragment_units,
            "information_bits": view.usage.information_bits,
            "joules": view.usage.joules,
            "energy_class": view.usage.energy_class,
            "confidence": view.confidence,
            "receipt_sha256": None if view.receipt is None else view.receipt["sha256"],
        },
    }


def _chat_logprobs(blocks: Sequence[CommittedBlock]) -> dict[str, Any]:
    content = [
        {
            **_entry(piece, unats),
            "top_logprobs": [_entry(other.piece, other.logprob_unats) for other in beside],
        }
        for piece, unats, beside in _tokens(blocks)
    ]
    return {"content": content, "refusal": None}


def _entry(piece: bytes, unats: int | None) -> dict[str, Any]:
    return {
        "token": piece.decode(errors="replace"),
        "bytes": list(piece),
        "logprob": None if unats is None else unats / 1e6,
    }


def _text_logprobs(blocks: Sequence[CommittedBlock], first_offset: int) -> dict[str, Any]:
    """The older endpoint's four parallel lists; a drawn token is always among the likeliest."""
    tokens, values, likeliest, offsets = [], [], [], []
    said = b""
    for piece, unats, beside in _tokens(blocks):
        token = piece.decode(errors="replace")
        tokens.append(token)
        values.append(None if unats is None else unats / 1e6)
        offsets.append(first_offset + len(said.decode(errors="replace")))
        said += piece
        if beside:
            drawn = {} if unats is None else {token: unats / 1e6}
            likeliest.append(
                drawn
                | {
                    other.piece.decode(errors="replace"): other.logprob_unats / 1e6
                    for other in beside
                    if other.logprob_unats is not None
                }
            )
    return {
        "tokens": tokens,
        "token_logprobs": values,
        "top_logprobs": likeliest or None,
        "text_offset": offsets,
    }


def _tokens(
    blocks: Sequence[CommittedBlock],
) -> Iterator[tuple[bytes, int | None, tuple[Likely, ...]]]:
    """Each token that has text, with what stood beside it."""
    for block in blocks:
        none: tuple[tuple[Likely, ...], ...] = ((),) * len(block.pieces)
        for piece, unats, beside in zip(
            block.pieces, block.logprobs_unats, block.alternatives or none, strict=True
        ):
            if piece:
                yield piece, unats, beside
