"""The bill, checked by doing the work again: a replay compared with what a receipt states. Pure.

Tokens, raw log-probabilities, text, units, confidence, bits, finish and every rated line are
worked out anew from the replay. Joules, blocks, drafting and what was found cached can't be
repeated: they are taken as stated, and only what was charged for them is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from billing import rating
from billing.catalogue import TariffVersion
from billing.differences import Difference, Figure
from billing.errors import BillingError, CannotAudit
from billing.rating import Component
from billing.receipt_documents import receipt_document
from billing.request_checks import check
from billing.request_evidence import Evidence
from billing.settlement import TEST_MODE
from billing.tariffs import document_sha256
from engine.records import EngineInfo, FinishReason, StepRecord, Work
from engine.requests import GenerationRequest, SamplingParams
from metering import bodies
from metering.bodies import BlockBody, TerminalBody
from metering.calibration import Calibration
from metering.events import FINAL_STATUSES, RequestSummary
from metering.information import total_ubits
from metering.ingestion.outside import ROUTE as OUTSIDE
from metering.request_meter import RequestMeter
from metering.requests import AdmittedRequest
from metering.review_rule import ReviewRule

# Backends whose results depend on neither threads nor instruction set.
PORTABLE_BACKENDS = frozenset({"blocks"})
# Nats, in millionths: how far a log-probability may be off where the arithmetic is another.
TOLERANCE_UNATS = 1_000

TAKEN_AS_STATED = ("energy", "blocks", "cached_input_tokens", "drafting")
_REPEATED = (
    *("parameters", "output", "units", "confidence", "information_bits"),
    *("green", "lines", "total"),
)
_BY_ITSELF = frozenset({FinishReason.STOP, FinishReason.LENGTH})


@dataclass(frozen=True, slots=True)
class Audit:
    """What a replay found."""

    request_id: str
    exact: bool  # the arithmetic was the same, so every digit must be
    tolerance_unats: int  # 0 when exact
    tokens: int  # compared
    differences: tuple[Difference, ...]
    taken_as_stated: tuple[str, ...] = TAKEN_AS_STATED


def stated(evidence: Evidence) -> dict[str, Any]:
    """The receipt's document. Raises CannotAudit where there is none, or nothing to repeat."""
    request = evidence.request
    if evidence.unreadable:
        raise CannotAudit(f"what is stored of {request.id} can't be read: {evidence.unreadable[0]}")
    if request.status not in FINAL_STATUSES or evidence.summary is None:
        raise CannotAudit(f"{request.id} is not final: it has no receipt yet")
    if evidence.receipt is None:
        raise CannotAudit(f"{request.id} has no receipt")
    if request.route == OUTSIDE:
        raise CannotAudit(f"{request.id} was reported by another engine, which had its prompt")
    if request.prompt is None:
        raise CannotAudit(
            f"the prompt of {request.id} and its options were erased: what it answered can't be "
            "generated again. Its receipt can still be verified"
        )
    document: dict[str, Any] = json.loads(evidence.receipt.document)
    return document


def generation_request(admitted: AdmittedRequest, prompt_ids: Sequence[int]) -> GenerationRequest:
    """The request as the engine was given it, undrafted and without its deadline."""
    parameters = admitted.parameters
    names = {field.name for field in msgspec.structs.fields(SamplingParams)} & set(parameters)
    sampling = {name: parameters[name] for name in names}
    biases = sampling.pop("logit_bias", {})
    sampling["logit_bias"] = [(int(token), bias) for token, bias in biases.items()]
    schema = parameters.get("json_schema")
    return GenerationRequest(
        request_id=admitted.id,
        tenant_id=admitted.tenant_id,
        prompt_ids=tuple(prompt_ids),
        max_tokens=admitted.max_tokens,
        sampling=msgspec.convert(sampling, SamplingParams),
        stop=tuple(parameters.get("stop", ())),
        draft=False,
        choice=parameters.get("choice", 0),
        top_logprobs=parameters.get("top_logprobs") or 0,
        json_schema=None if schema is None else json.dumps(schema),
    )


def audit(
    evidence: Evidence,
    admitted: AdmittedRequest,
    version: Callable[[str], TariffVersion],
    public_keys: Mapping[str, Any],
    *,
    engine: EngineInfo,
    prompt_ids: Sequence[int],
    steps: Iterable[StepRecord],
    calibration: Calibration | None = None,
) -> Audit:
    """Compare a replay's `steps` with everything stored and signed about a request.

    `calibration` is the version that the summary names. Raises CannotAudit when the replay is of
    another model, or the block detail that another
    arithmetic would have to be held against is gone.
    """
    document = stated(evidence)
    summary = evidence.summary
    assert summary is not None
    if document["model"]["checksum"] != engine.checksum:
        raise CannotAudit(
            f"the receipt is of a model with checksum {document['model']['checksum']}, "
            f"the one at hand has {engine.checksum}"
        )
    tolerance = 0 if _same_arithmetic(document["engine"], engine) else TOLERANCE_UNATS
    before = tuple(check(evidence, version, public_keys))
    again = _Repeated.of(evidence, steps, engine.vocab_size, tolerance)
    figures = [
        (
            "input tokens",
            0 if admitted.parameters.get("choice") else len(prompt_ids),
            summary.input_tokens,
        ),
        *again.figures(summary),
        *_receipt(evidence, again.meter(admitted, calibration), version, document),
    ]
    return Audit(
        request_id=summary.request_id,
        exact=tolerance == 0,
        tolerance_unats=tolerance,
        tokens=len(again.token_ids),
        differences=before
        + tuple(
            Difference(f"replayed {name}", summary.request_id, str(expected), str(actual))
            for name, expected, actual in figures
            if expected != actual
        ),
    )


def _same_arithmetic(receipt_engine: Mapping[str, Any] | None, engine: EngineInfo) -> bool:
    if receipt_engine is None or not (engine.batch_invariant and receipt_engine["batch_invariant"]):
        return False
    scaling = receipt_engine.get("rope_scaling_factor", "1")
    if float(scaling) != engine.rope_scaling_factor:
        raise CannotAudit(f"positions were scaled by {scaling}, here by other than that")
    same = ["backend"]
    if engine.backend not in PORTABLE_BACKENDS:
        same += ["device", "instruction_set", "thread_count"]
    return all(receipt_engine[name] == getattr(engine, name) for name in same)


@dataclass(frozen=True, slots=True)
class _Repeated:
    """A replay, cut to what the request had said when it ended, beside what was stored."""

    blocks: tuple[BlockBody, ...]
    stored: tuple[BlockBody, ...]
    reason: FinishReason | None  # null where the replay was stopped, not ended
    vocab_size: int
    tolerance_unats: int

    @classmethod
    def of(
        cls, evidence: Evidence, steps: Iterable[StepRecord], vocab_size: int, tolerance: int
    ) -> _Repeated:
        assert evidence.summary is not None
        stored = tuple(bodies.blocks(evidence.events))
        if tolerance and not stored and evidence.summary.output_tokens:
            raise CannotAudit("the block detail is gone, and the arithmetic here is another")
        left = evidence.summary.output_tokens
        blocks: list[BlockBody] = []
        reason = None
        for step in steps:
            for block in step.blocks:
                body = bodies.block_body(step, block, Work(), vocab_size)
                if len(body.token_ids) > left:
                    body = bodies.cut(body, left, vocab_size)
                left -= len(body.token_ids)
                if body.token_ids:
                    blocks.append(body)
            for finish in step.finishes:
                reason = finish.reason
        return cls(tuple(blocks), stored, reason, vocab_size, tolerance)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token for block in self.blocks for token in block.token_ids)

    def figures(self, summary: RequestSummary) -> Iterator[Figure]:
        yield "number of tokens", len(self.token_ids), summary.output_tokens
        if summary.finish_reason in _BY_ITSELF:
            reason = None if self.reason is None else self.reason.value
            yield "finish reason", reason, summary.finish_reason
        if not self.stored:
            return
        pairs = zip(
            self.token_ids,
            (token for block in self.stored for token in block.token_ids),
            strict=False,
        )
        for position, (again, before) in enumerate(pairs):
            yield f"token {position}", again, before
            if again != before:
                return  # what follows has another context
        pieces = b"".join(piece for block in self.blocks for piece in block.pieces)
        yield "bytes", pieces, b"".join(piece for block in self.stored for piece in block.pieces)
        for position, (unats, said) in enumerate(zip(self._unats, self._said, strict=False)):
            if not _near(unats, said, self.tolerance_unats):
                yield f"log-probability of token {position}, in micronats", unats, said

    def meter(self, admitted: AdmittedRequest, calibration: Calibration | None) -> RequestMeter:
        """The replay, folded. Log-probabilities within the tolerance count as they were stored."""
        meter = RequestMeter(admitted, ReviewRule(), calibration)
        said = iter(self._said)
        for index, block in enumerate(self.blocks):
            near = tuple(
                before if _near(unats, before, self.tolerance_unats) else unats
                for unats, before in zip(
                    block.logprobs_unats,
                    (next(said, unats) for unats in block.logprobs_unats),
                    strict=True,
                )
            )
            meter.fold_block(
                msgspec.structs.replace(
                    block,
                    block_index=index,
                    logprobs_unats=near,
                    information_ubits=total_ubits(near, self.vocab_size),
                )
            )
        return meter

    @property
    def _unats(self) -> Iterator[int | None]:
        return (unats for block in self.blocks for unats in block.logprobs_unats)

    @property
    def _said(self) -> Iterator[int | None]:
        return (unats for block in self.stored for unats in block.logprobs_unats)


def _near(one: int | None, other: int | None, tolerance: int) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= tolerance


def _receipt(
    evidence: Evidence,
    meter: RequestMeter,
    version: Callable[[str], TariffVersion],
    document: Mapping[str, Any],
) -> Iterator[Figure]:
    admitted = meter.admitted
    summary = evidence.summary
    assert summary is not None
    end = next((event for event in evidence.events if isinstance(event, TerminalBody)), None)
    if end is None:
        return  # which is a difference already
    if end.replaced_tail:
        meter.replace_tail()
    if evidence.request.output is not None:
        yield "text", meter.output, evidence.request.output
    repeated = msgspec.structs.replace(
        meter.summary(
            msgspec.structs.replace(end, output_sha256=meter.output_sha256),
            summary.ended_at_us,
            summary.energy,
        ),
        blocks=summary.blocks,
        verified_blocks=summary.verified_blocks,
        cached_input_tokens=summary.cached_input_tokens,
        drafting=summary.drafting,
        review_reason=summary.review_reason,
        audit_ppm=summary.audit_ppm,
    )
    for field in msgspec.structs.fields(RequestSummary):
        yield f"summary's {field.name}", getattr(repeated, field.name), getattr(summary, field.name)
    tariff = version(summary.tariff_version_id)
    yield "tariff", document_sha256(tariff.document), document["tariff"]["sha256"]
    lines = [line for line in document["lines"] if line["component"] != Component.WRITE_OFF]
    reviewed = any(line["component"] == Component.REVIEW for line in lines)
    try:
        charge = (
            rating.waive(TEST_MODE)
            if admitted.test_mode
            else rating.rate(repeated, tariff.document, review_fee=reviewed)
        )
    except BillingError as error:
        yield "charge", str(error), document["total"]
        return
    expected = receipt_document(
        repeated,
        tariff,
        charge.lines,
        engine=None,
        review=None,
        test_mode=admitted.test_mode,
        parameters=admitted.parameters,
        salt=admitted.content_salt,
        issued_at_us=0,
    )
    actual = {**document, "lines": lines}
    if len(lines) != len(document["lines"]):  # what was written off was never charged
        actual["total"] = expected["total"]
    for name in _REPEATED:
        yield f"receipt's {name}", expected[name], actual.get(name)  # early ones say less
