"""What `/v1` answers: OpenAI's objects, with the cost and our own figures beside its usage."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from api.inference.schemas import GenerationView, UsageView
from billing.money import plain
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

    def answer(
        self, views: Sequence[GenerationView], blocks: Sequence[list[CommittedBlock]] | None
    ) -> dict[str, Any]:
        """A complete answer of one or more choices.

        Each choice's blocks are given when log-probabilities were asked for.
        """
        return {
            **self._head(views[0].id, views[0].model, self.whole),
            "choices": [
                self._choice(
                    index, view, None if blocks is None else Scores(self).of(blocks[index])
                )
                for index, view in enumerate(views)
            ],
            "usage": usage(views),
        }

    def part(
        self,
        order_id: str,
        model: str,
        index: int,
        *,
        text: str | None = None,
        first: bool = False,
        finish: str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """One streamed part of one choice: text, or the finish reason."""
        choice: dict[str, Any] = {"index": index, "finish_reason": finish, "logprobs": logprobs}
        if self.chat:
            delta: dict[str, Any] = {"role": "assistant"} if first else {}
            if text is not None:
                delta["content"] = text
            choice["delta"] = delta
        else:
            choice["text"] = text or ""
        return {**self._head(order_id, model, self.chunk), "choices": [choice], "usage": None}

    def usage_part(self, views: Sequence[GenerationView]) -> dict[str, Any]:
        """The part before `[DONE]`: no choices, the usage and what it cost."""
        return {
            **self._head(views[0].id, views[0].model, self.chunk),
            "choices": [],
            "usage": usage(views),
        }

    def _choice(
        self, index: int, view: GenerationView, logprobs: dict[str, Any] | None
    ) -> dict[str, Any]:
        text = view.output or ""
        choice: dict[str, Any] = {
            "index": index,
            "finish_reason": finish_reason(view),
            "logprobs": logprobs,
        }
        if self.chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        return choice

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
    """The finish reason in OpenAI's words; an answer kept for a reviewer has no text yet."""
    if view.review is not None and view.review.withheld:
        return "content_filter"
    return FINISH_REASONS.get(view.finish_reason or "", "length")


def usage(views: Sequence[GenerationView]) -> dict[str, Any] | None:
    """Token counts in OpenAI's names, the cost, and what only we meter, over all choices.

    Each choice is a generation with a receipt of its own; where there are several they are listed.
    """
    counted = [view.usage for view in views if view.usage is not None]
    if len(counted) < len(views):
        return None
    input_tokens = sum(each.input_tokens for each in counted)
    output_tokens = sum(each.output_tokens for each in counted)
    costs = [Decimal(view.cost) for view in views if view.cost is not None]
    cost = sum(costs, Decimal(0)) if len(costs) == len(views) else None
    choices = [_metered(view, each) for view, each in zip(views, counted, strict=True)]
    return {
        "prompt_tokens": input_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": input_tokens + output_tokens,
        "prompt_tokens_details": {
            # The prompt counts once, with the first choice, and so does what of it was cached.
            "cached_tokens": sum(
                min(each.cached_input_tokens, each.input_tokens) for each in counted
            )
        },
        "cost": None if cost is None else float(cost),  # a number, as others send it
        "dflash": choices[0]
        if len(choices) == 1
        else {
            "cost": None if cost is None else plain(cost),
            "currency": views[0].currency,
            "choices": choices,
        },
    }


def _metered(view: GenerationView, counted: UsageView) -> dict[str, Any]:
    return {
        "generation_id": view.id,
        "status": view.status,
        "finish_reason": view.finish_reason,
        "cost": view.cost,
        "currency": view.currency,
        "forced_tokens": counted.forced_tokens,
        "complete_units": counted.complete_units,
        "fragment_units": counted.fragment_units,
        "information_bits": counted.information_bits,
        "joules": counted.joules,
        "energy_class": counted.energy_class,
        "confidence": view.confidence,
        "review": view.review,
        "receipt_sha256": None if view.receipt is None else view.receipt["sha256"],
    }


@dataclass(frozen=True, slots=True)
class _Token:
    """A token with text, its raw log-probability in nats, and the likeliest beside it."""

    piece: bytes
    logprob: float
    offset: int = 0  # of the character that it begins or goes on with
    likeliest: tuple[_Token, ...] = ()

    @property
    def text(self) -> str:
        r"""Its text; of bytes that are none by themselves `bytes:\xf0\x9f`, as OpenAI writes it."""
        try:
            return self.piece.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.piece)

    def entry(self) -> dict[str, Any]:
        return {"token": self.text, "bytes": list(self.piece), "logprob": self.logprob}

    def by_text(self) -> dict[str, float]:
        """The log-probabilities by text: its own, and of several with one text the likeliest's."""
        found: dict[str, float] = {}
        for token in (self, *self.likeliest):
            found.setdefault(token.text, token.logprob)
        return found


class Scores:
    """The raw log-probabilities of one choice's blocks, told in order, at once or block by block.

    A character may be open between two blocks; its bytes are remembered, so that where a token
    stands doesn't depend on how its text was cut.
    """

    def __init__(self, shape: Shape) -> None:
        self._chat = shape.chat
        self._reader = getincrementaldecoder("utf-8")("replace")
        self._said = 0  # whole characters

    def of(self, blocks: Sequence[CommittedBlock]) -> dict[str, Any]:
        """What the next blocks' tokens scored, in the endpoint's shape."""
        tokens = list(self._tokens(blocks))
        if self._chat:
            content = [
                {**token.entry(), "top_logprobs": [other.entry() for other in token.likeliest]}
                for token in tokens
            ]
            return {"content": content, "refusal": None}
        asked = any(block.alternatives for block in blocks)
        # The older endpoint's four parallel lists; a drawn token is always among the likeliest.
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [token.by_text() for token in tokens] if asked else None,
            "text_offset": [token.offset for token in tokens],
        }

    def _tokens(self, blocks: Sequence[CommittedBlock]) -> Iterator[_Token]:
        """Each token that has text and a score; all text counts for where the next one stands."""
        for block in blocks:
            beside = block.alternatives or ((),) * len(block.pieces)
            for piece, unats, others in zip(
                block.pieces, block.logprobs_unats, beside, strict=True
            ):
                offset = self._said
                self._said += len(self._reader.decode(piece))
                if piece and unats is not None:
                    likeliest = tuple(
                        _Token(other.piece, other.logprob_unats / 1e6)
                        for other in others
                        if other.logprob_unats is not None
                    )
                    yield _Token(piece, unats / 1e6, offset, likeliest)
