"""`/v1`: the same engine, meter and money, for clients that speak OpenAI's protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from litestar import Request, get, post
from litestar.di import NamedDependency
from litestar.params import HeaderParameter, JSONBody
from litestar.types import ASGIApp
from sqlalchemy import Engine as Database

from api.auth import Principal, Scope, requires
from api.bodies import StrictBody
from api.error_reports import documented, report
from api.errors import Forbidden, GenerationFailed, InvalidParameter, NotSettled, Unauthenticated
from api.gateway import Gateway, Live
from api.inference import orders, replies
from api.inference.event_stream import KEEPALIVE, EventStream, sse
from api.inference.idempotency import IdempotencyKey
from api.inference.openai_replies import CHAT, TEXT, Scores, Shape, finish_reason
from api.inference.openai_schemas import (
    ChatCompletionRequest,
    CompletionParameters,
    CompletionRequest,
)
from api.inference.orders import Order, ServedModel
from api.inference.schemas import GenerationView
from api.schemas import PathId
from billing.money import parse_nano
from engine.errors import InvalidRequest, ModelNotFound
from metering.database import snapshot
from metering.protocols import CommittedBlock
from metering.requests import choice_ids

encode = msgspec.json.encode
DONE = b"data: [DONE]\n\n"
COMPLETION_TOKENS_DEFAULT = 16  # as OpenAI documents for the older endpoint

KeyHeader = Annotated[str | None, HeaderParameter(name="Idempotency-Key")]


@post(
    "/v1/chat/completions",
    status_code=200,
    tags=["openai"],
    summary="Chat completion",
    guards=[requires(Scope.GENERATE)],
    dto=StrictBody,
    return_dto=None,
    responses=documented(*replies.REFUSALS, openai=True),
)
async def chat_completions(
    request: Request[Any, Any, Any],
    data: JSONBody[ChatCompletionRequest],
    gateway: NamedDependency[Gateway],
    principal: NamedDependency[Principal],
    idempotency_key: KeyHeader = None,
) -> ASGIApp:
    """Answer a conversation in OpenAI's shape; `usage` carries cost, units, joules and receipt."""
    served = gateway.served
    order = await served.turns.read(principal.tenant_id, _chat_order, served, data)
    key = IdempotencyKey.of(idempotency_key, await request.body())
    return await _answer(request, gateway, principal, data, order=order, key=key, shape=CHAT)


@post(
    "/v1/completions",
    status_code=200,
    tags=["openai"],
    summary="Text completion",
    guards=[requires(Scope.GENERATE)],
    dto=StrictBody,
    return_dto=None,
    responses=documented(*replies.REFUSALS, openai=True),
)
async def completions(
    request: Request[Any, Any, Any],
    data: JSONBody[CompletionRequest],
    gateway: NamedDependency[Gateway],
    principal: NamedDependency[Principal],
    idempotency_key: KeyHeader = None,
) -> ASGIApp:
    """Continue a raw prompt in OpenAI's shape."""
    served = gateway.served
    order = await served.turns.read(principal.tenant_id, _text_order, served, data)
    key = IdempotencyKey.of(idempotency_key, await request.body())
    return await _answer(request, gateway, principal, data, order=order, key=key, shape=TEXT)


@get(
    "/v1/models",
    tags=["openai"],
    summary="Models served here",
    guards=[requires(Scope.READ_USAGE)],
    responses=documented(Unauthenticated, Forbidden, openai=True),
    sync_to_thread=False,
)
def models(gateway: NamedDependency[Gateway]) -> dict[str, Any]:
    """The one model of this gateway."""
    return {"object": "list", "data": [_model(gateway)]}


@get(
    "/v1/models/{name:str}",
    tags=["openai"],
    summary="A model",
    guards=[requires(Scope.READ_USAGE)],
    responses=documented(InvalidParameter, Unauthenticated, Forbidden, ModelNotFound, openai=True),
    sync_to_thread=False,
)
def model(gateway: NamedDependency[Gateway], name: PathId) -> dict[str, Any]:
    """The model, if it is the one served."""
    gateway.served.check_name(name)
    return _model(gateway)


def _model(gateway: Gateway) -> dict[str, Any]:
    info = gateway.engine.info
    return {
        "id": info.model,
        "object": "model",
        "created": gateway.started_at_s,
        "owned_by": "dflash-gateway",
        "context_length": info.context_length,
        "checksum": info.checksum,
    }


async def _answer(
    request: Request[Any, Any, Any],
    gateway: NamedDependency[Gateway],
    principal: NamedDependency[Principal],
    wire: CompletionParameters,
    *,
    order: Order,
    key: IdempotencyKey | None,
    shape: Shape,
) -> ASGIApp:
    logprobs = order.top_logprobs is not None
    include_usage = wire.stream_options is not None and wire.stream_options.include_usage
    submitted = await gateway.submit(principal, order, key, shows_blocks=bool(wire.stream))
    live = submitted if isinstance(submitted, Live) else None
    request_ids = choice_ids(submitted.request_id, order.choices)
    reply_headers = replies.headers(submitted.request_id, replayed=live is None)
    if wire.stream and live is not None:
        parts = _live_parts(
            gateway, live, order.model, shape, logprobs=logprobs, usage=include_usage
        )
        return EventStream(
            parts, lambda: gateway.cancel(live), lambda: gateway.stop(live), reply_headers
        )
    if live is not None and not await replies.wait_settled(request.receive, gateway, live):
        return replies.client_closed()
    views, blocks = await asyncio.to_thread(_stored, gateway.database, request_ids)
    if wire.stream:
        parts = _stored_parts(blocks, views, shape, logprobs=logprobs, usage=include_usage)
        return EventStream(parts, _nothing, _nothing, reply_headers)
    for view in views:
        if view.status == "failed":
            raise GenerationFailed(view.id, view.failure)
    return replies.json_reply(shape.answer(views, blocks if logprobs else None), reply_headers)


class _Telling:
    """A stream's parts, choice by choice: what was said of each so far."""

    def __init__(self, shape: Shape, order_id: str, model: str, *, logprobs: bool) -> None:
        self._shape = shape
        self._order_id = order_id
        self._model = model
        self._logprobs = logprobs
        self._scores: dict[int, Scores] = {}  # of the choices that something was said of

    def text(self, index: int, block: CommittedBlock) -> bytes:
        """The part that tells of a block."""
        first = index not in self._scores
        scores = self._scores.setdefault(index, Scores(self._shape))
        part = self._shape.part(
            self._order_id,
            self._model,
            index,
            text=block.text,
            first=first,
            logprobs=scores.of([block]) if self._logprobs else None,
        )
        return sse(None, encode(part))

    def end(self, index: int, view: GenerationView) -> bytes:
        """The part that tells of a choice's end."""
        reason = finish_reason(view)
        return sse(
            None, encode(self._shape.part(self._order_id, self._model, index, finish=reason))
        )


async def _live_parts(
    gateway: Gateway, live: Live, model_name: str, shape: Shape, *, logprobs: bool, usage: bool
) -> AsyncIterator[bytes]:
    telling = _Telling(shape, live.request_id, model_name, logprobs=logprobs)
    views: dict[int, GenerationView] = {}
    try:
        async for item in replies.told(gateway, live):
            if item is None:
                yield KEEPALIVE
            elif isinstance(item, CommittedBlock):
                yield telling.text(live.request_ids.index(item.request_id), item)
            else:
                index = live.request_ids.index(item.id)
                views[index] = item
                if item.status != "failed":
                    yield telling.end(index, item)
    except NotSettled as error:
        yield sse(None, encode(report(error).as_openai()))
        return
    for part in _ending(shape, [views[index] for index in sorted(views)], usage):
        yield part


async def _stored_parts(
    blocks: list[list[CommittedBlock]],
    views: list[GenerationView],
    shape: Shape,
    *,
    logprobs: bool,
    usage: bool,
) -> AsyncIterator[bytes]:
    telling = _Telling(shape, views[0].id, views[0].model, logprobs=logprobs)
    for index, view in enumerate(views):
        for block in blocks[index]:
            yield telling.text(index, block)
        if view.status != "failed":
            yield telling.end(index, view)
    for part in _ending(shape, views, usage):
        yield part


def _ending(shape: Shape, views: list[GenerationView], include_usage: bool) -> list[bytes]:
    for view in views:
        if view.status == "failed":
            failed = report(GenerationFailed(view.id, view.failure))
            return [sse(None, encode(failed.as_openai()))]
    parts = [sse(None, encode(shape.usage_part(views)))] if include_usage else []
    return [*parts, DONE]


def _chat_order(served: ServedModel, wire: ChatCompletionRequest) -> Order:
    orders.refuse_unsupported(wire.refused())
    if wire.max_tokens is not None and wire.max_completion_tokens is not None:
        raise InvalidRequest("give max_completion_tokens or max_tokens, not both", "max_tokens")
    name = "max_tokens" if wire.max_tokens is not None else "max_completion_tokens"
    asked = wire.max_tokens if wire.max_tokens is not None else wire.max_completion_tokens
    messages = [turn.plain() for turn in wire.messages]
    prompt, input_ids = orders.encode_prompt(served, None, messages)
    limit = orders.token_limit(served, len(input_ids), asked, name)
    form = wire.response_format.document() if wire.response_format else None
    return _order(
        served,
        wire,
        _Prompt("chat.completions", prompt, input_ids, limit, wire.metadata),
        top_logprobs=(wire.top_logprobs or 0) if wire.logprobs else None,
        json_schema=orders.schema(served, form, "response_format"),
    )


def _text_order(served: ServedModel, wire: CompletionRequest) -> Order:
    orders.refuse_unsupported(wire.refused())
    if isinstance(wire.prompt, str):
        text = wire.prompt
    elif len(wire.prompt) == 1 and isinstance(wire.prompt[0], str):
        text = wire.prompt[0]
    else:
        raise InvalidRequest("prompt must be one string here", "prompt")
    prompt, input_ids = orders.encode_prompt(served, text, None)
    asked = COMPLETION_TOKENS_DEFAULT if wire.max_tokens is None else wire.max_tokens
    limit = orders.token_limit(served, len(input_ids), asked)
    return _order(
        served,
        wire,
        _Prompt("completions", prompt, input_ids, limit, None),
        top_logprobs=wire.logprobs,
        json_schema=None,
    )


@dataclass(frozen=True, slots=True)
class _Prompt:
    """What differs between the two endpoints' orders."""

    route: str
    sent: Any
    input_ids: tuple[int, ...]
    max_tokens: int
    tags: dict[str, str] | None


def _order(
    served: ServedModel,
    wire: CompletionParameters,
    prompt: _Prompt,
    *,
    top_logprobs: int | None,
    json_schema: str | None,
) -> Order:
    end_user, tags = orders.labels(wire.user, prompt.tags, ("user", "metadata"))
    return Order(
        route=prompt.route,
        model=served.check_name(wire.model),
        prompt=prompt.sent,
        input_ids=prompt.input_ids,
        max_tokens=prompt.max_tokens,
        sampling=orders.sampling_params(
            served,
            temperature=1.0 if wire.temperature is None else wire.temperature,
            top_k=wire.top_k,
            top_p=wire.top_p,
            min_p=wire.min_p,
            seed=wire.seed,
            repetition_penalty=wire.repetition_penalty,
            frequency_penalty=wire.frequency_penalty,
            presence_penalty=wire.presence_penalty,
            logit_bias=wire.logit_bias,
        ),
        stop=orders.stop_strings(wire.stop),
        draft=wire.draft is not False,
        max_cost_nano=parse_nano(wire.max_cost) if wire.max_cost is not None else None,
        deadline_ms=None,
        end_user=end_user,
        tags=tags,
        top_logprobs=top_logprobs,
        json_schema=json_schema,
        choices=wire.n or 1,
        energy=wire.energy,
        max_energy_uj=orders.energy_limit(wire.max_joules, wire.n or 1),
    )


def _stored(
    database: Database, request_ids: Sequence[str]
) -> tuple[list[GenerationView], list[list[CommittedBlock]]]:
    views = [replies.read_final(database, request_id) for request_id in request_ids]
    with snapshot(database) as connection:
        return views, [replies.stored_blocks(connection, view) for view in views]


async def _nothing() -> None:
    """A replay that is cut short costs nobody anything."""
