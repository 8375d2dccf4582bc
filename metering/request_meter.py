"""One request's facts, folded into its summary as they come.

It is fed with what events state and nothing else, by the running recorder as by a restart that
reads them back, so both arrive at the same summary. It never decides anything: what is cut,
withheld or ended is stated in them.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import NamedTuple

from engine.records import DraftCounters, FinishReason
from metering import confidence, content_hash
from metering.bodies import BlockBody, EnergyBody, Fact, TerminalBody
from metering.calibration import REQUEST, Calibration
from metering.confidence import Score
from metering.energy import by_choice, shown_uj
from metering.events import (
    ConfidenceSummary,
    EndedBy,
    EnergyClass,
    EnergySummary,
    RequestStatus,
    RequestSummary,
    UnitState,
    UnitSummary,
)
from metering.requests import AdmittedRequest
from metering.review_rule import ReviewRule
from metering.semantic import SEGMENTER, Segmenter
from metering.unit_tokens import FORCED, UnitTokens, score_of

NO_ENERGY = EnergySummary(
    energy_class=EnergyClass.UNAVAILABLE,
    energy_uj=None,
    shown_uj=None,
    source="none",
    scope="none",
    method="none",
    uncertainty_pct=None,
)


class BlockEffect(NamedTuple):
    """What a block added, for the stream."""

    text: str  # code points that became complete with it
    units_closed: int  # complete units so far
    score: Score | None  # of its tokens


class RequestMeter:
    """The fold of one request's events. Cheap to copy; not locked."""

    def __init__(
        self,
        admitted: AdmittedRequest,
        rule: ReviewRule,
        calibration: Calibration | None = None,
    ) -> None:
        self.admitted = admitted
        self.rule = rule
        self.calibration = calibration
        self.segmenter = Segmenter()
        self.output = ""  # every complete code point so far, as delivered
        self.blocks = 0
        self.cached_input_tokens = 0
        self.verified_blocks = 0
        self.output_tokens = 0
        self.drafted_nodes = 0
        self.drafted_depth = 0
        self.verified_nodes = 0
        self.accepted_tokens = 0
        self.cached_tokens = 0
        self.sum_unats = 0
        self.low_unats = 0
        self.forced_tokens = 0
        self.missing_scores = 0
        self.information_ubits = 0
        self.energy_events = 0
        self.energy_through_block = -1
        self._energy = NO_ENERGY
        self._energy_known = True
        self._tail = b""  # of a code point that is unfinished
        self._digest = content_hash.begin(admitted.content_salt)
        self._shown_bytes = 0
        self._tokens = UnitTokens(calibration)
        self._units: list[UnitSummary] = []
        self._units_complete = 0
        self._weakest_unit: str | None = None

    def fold(self, fact: Fact) -> None:
        """Take one fact, in the order of the log."""
        match fact:
            case BlockBody():
                self.fold_block(fact)
            case EnergyBody():
                self.fold_energy(fact)
            case TerminalBody():
                if fact.replaced_tail:
                    self.replace_tail()

    def fold_block(self, body: BlockBody) -> BlockEffect:
        """Take the next block; raises ValueError when one before it is missing."""
        return self.fold_blocks((body,))

    def fold_blocks(self, bodies: Sequence[BlockBody]) -> BlockEffect:
        """Take the next blocks at once, as if one after the other; returns what all added.

        Raises ValueError when one is missing, and takes none of them then.
        """
        for index, body in enumerate(bodies, start=self.blocks):
            if body.block_index != index:
                raise ValueError(
                    f"block {body.block_index} of {body.request_id} follows {index} blocks"
                )
        pieces: list[bytes] = []
        unats: list[int | None] = []
        for body in bodies:
            pieces += body.pieces
            unats += body.logprobs_unats
            self.missing_scores += body.logprobs_unats.count(None)
            if body.forced:
                self.forced_tokens += len(body.forced)
                for index in body.forced:
                    unats[index - len(body.token_ids)] = FORCED
            self.cached_input_tokens += body.cached_prompt_tokens
            self.verified_blocks += body.accepted_tokens > 0
            self.information_ubits += body.information_ubits or 0
            self.drafted_nodes += body.drafted_nodes
            self.drafted_depth += body.drafted_depth
            self.verified_nodes += body.verified_nodes
            self.accepted_tokens += body.accepted_tokens
            self.cached_tokens += body.cached_tokens
        self.blocks += len(bodies)
        self.output_tokens += len(pieces)
        score = score_of(unats)
        if score is not None:
            self.sum_unats += score.sum_unats
            self.low_unats = min(self.low_unats, score.min_unats)
        text = self._place(pieces, unats)
        return BlockEffect(text, self._units_complete, score)

    def fold_energy(self, body: EnergyBody) -> None:
        """Take the energy of steps that have settled."""
        self.energy_events += 1
        self.energy_through_block = max(self.energy_through_block, body.through_block)
        if body.energy_uj is None or not self._adds_up(body):
            self._energy_known = False
            self._energy = NO_ENERGY
            return
        total_uj = (self._energy.energy_uj or 0) + body.energy_uj
        self._energy = EnergySummary(
            energy_class=body.energy_class,
            energy_uj=total_uj,
            shown_uj=shown_uj(total_uj),
            source=body.source,
            scope=body.scope,
            method=body.method,
            uncertainty_pct=body.uncertainty_pct,
            weights=body.weights,
            devices=tuple(body.device.split("+")),
            update_period_us=body.update_period_us,
        )

    def replace_tail(self) -> str:
        """Show an unfinished code point at the end as U+FFFD; returns what that adds."""
        return self._show(self._decode(b"", final=True))

    @property
    def drafting(self) -> DraftCounters:
        """What its blocks say of drafting, added up."""
        return DraftCounters(
            steps=self.blocks,
            emitted_tokens=self.output_tokens,
            drafted_nodes=self.drafted_nodes,
            drafted_depth=self.drafted_depth,
            verified_nodes=self.verified_nodes,
            accepted_tokens=self.accepted_tokens,
            cached_tokens=self.cached_tokens,
        )

    @property
    def output_sha256(self) -> str:
        """Hex SHA-256 of the request's salt, if it has one, and the output's UTF-8."""
        return self._digest.hexdigest()

    @property
    def has_tail(self) -> bool:
        """Whether the output ends within a code point."""
        return self._tail != b""

    @property
    def energy(self) -> EnergySummary:
        """The request's energy. A part of it is no figure: all its blocks, or null."""
        whole = self.energy_events > 0 and self.energy_through_block >= self.blocks - 1
        return self._energy if whole else NO_ENERGY

    @property
    def settled_uj(self) -> int | None:
        """Energy settled so far, whatever is still to come; null when there can be no figure."""
        return self._energy.energy_uj

    def terminal(
        self,
        status: RequestStatus,
        finish_reason: FinishReason,
        ended_by: EndedBy,
        *,
        replaced_tail: bool = False,
        detail: str | None = None,
    ) -> TerminalBody:
        """The statement that the request ends here, so."""
        return TerminalBody(
            request_id=self.admitted.id,
            status=status,
            finish_reason=finish_reason.value,
            ended_by=ended_by,
            blocks=self.blocks,
            tokens=self.output_tokens,
            output_sha256=self.output_sha256,
            replaced_tail=replaced_tail,
            detail=detail,
        )

    def summary(
        self, end: TerminalBody, ended_at_us: int, energy: EnergySummary | None = None
    ) -> RequestSummary:
        """The request as if it ended here, so. Changes nothing.

        `energy` stands in for figures that aren't settled yet.
        """
        stopped = end.finish_reason == FinishReason.STOP.value
        opened = self._tokens.open_summaries(
            len(self._units), self.segmenter.open_units(stopped=stopped)
        )
        units = (*self._units, *opened)
        output_tokens = self.output_tokens
        scored = self._confidence()
        calibration = self.calibration
        admitted = self.admitted
        return RequestSummary(
            request_id=admitted.id,
            tenant_id=admitted.tenant_id,
            model=admitted.model,
            tariff_version_id=admitted.tariff_version_id,
            status=end.status,
            finish_reason=end.finish_reason,
            ended_by=end.ended_by,
            input_tokens=admitted.input_tokens,
            cached_input_tokens=self.cached_input_tokens,
            output_tokens=output_tokens,
            forced_tokens=self.forced_tokens,
            unattached_tokens=0 if units else output_tokens,
            blocks=self.blocks,
            verified_blocks=self.verified_blocks,
            output_sha256=end.output_sha256,
            segmenter=SEGMENTER,
            units=units,
            confidence=scored,
            information_ubits=None if self.missing_scores else self.information_ubits,
            energy=energy or self.energy,
            drafting=self.drafting,
            review_reason=self.rule.reason(
                admitted.id,
                output_tokens - self.forced_tokens,
                scored,
                _weaker(self._weakest_unit, opened),
                None if calibration is None else calibration.review_below,
            ),
            started_at_us=admitted.started_at_us,
            green=by_choice(admitted.parameters),
            ended_at_us=ended_at_us,
            calibration=None if calibration is None else calibration.id,
            audit_ppm=self.rule.audit_ppm(admitted.id),
        )

    def copy(self) -> RequestMeter:
        """An independent meter in the same state; costs as much as the open text is long."""
        twin = RequestMeter.__new__(RequestMeter)
        twin.__dict__.update(self.__dict__)
        twin.segmenter = self.segmenter.copy()
        twin._digest = self._digest.copy()
        twin._tokens = self._tokens.copy()
        twin._units = self._units[:]
        return twin

    def _adds_up(self, body: EnergyBody) -> bool:
        """Whether energy so far is known, and was had as this was: no sum is of two kinds."""
        so_far = self._energy
        return self._energy_known and (
            so_far.energy_uj is None
            or (so_far.energy_class, so_far.source, so_far.scope)
            == (body.energy_class, body.source, body.scope)
        )

    def _place(self, pieces: Sequence[bytes], unats: Sequence[int | None]) -> str:
        """Take a block's tokens, each with its place in the output; returns the text they add."""
        shown_bytes, offsets = self._shown_bytes, []
        data = b"".join(pieces)
        if data.isascii() and not self._tail and b"\0" not in data:
            # All code points are complete, and shown as they are.
            for piece in pieces:
                shown_bytes += len(piece)
                offsets.append(shown_bytes - 1 if shown_bytes else 0)
            self._tokens.add(offsets, unats)
            return self._show(data.decode())
        texts = []
        for piece in pieces:
            text = self._decode(piece)
            texts.append(text)
            shown_bytes += len(text) if text.isascii() else len(text.encode())
            # A code point still unfinished will begin at the next byte to be shown. No unit that
            # this block's text closes ends behind the last byte of a token after it.
            offsets.append(shown_bytes if self._tail else max(0, shown_bytes - 1))
        self._tokens.add(offsets, unats)
        return self._show("".join(texts))

    def _decode(self, piece: bytes, *, final: bool = False) -> str:
        """The code points that became complete, as they are shown."""
        data = self._tail + piece
        text, used = codecs.utf_8_decode(data, "replace", final)
        self._tail = data[used:]
        # U+0000 is legal UTF-8, but no text of PostgreSQL: it is shown as what can't be.
        return text.replace("\0", "\ufffd")

    def _show(self, text: str) -> str:
        """Add delivered text to the output and close the units that it completes."""
        if not text:
            return ""
        data = text.encode()
        self.output += text
        self._digest.update(data)
        self._shown_bytes += len(data)
        for unit in self.segmenter.feed(data):
            summary = self._tokens.close(len(self._units), unit)
            self._units.append(summary)
            self._units_complete += summary.state is UnitState.COMPLETE
            self._weakest_unit = _weaker(self._weakest_unit, [summary])
        return text

    def _confidence(self) -> ConfidenceSummary | None:
        score = self._score()
        if score is None:
            return None
        if self.calibration is None:
            return confidence.summarise(score)
        return confidence.summarise(score, self.calibration.calibrated(REQUEST, score.geo_mean))

    def _score(self) -> Score | None:
        tokens = self.output_tokens - self.forced_tokens
        if not tokens or self.missing_scores:
            return None
        return Score(tokens, self.sum_unats, self.low_unats)


def _weaker(weakest: str | None, units: list[UnitSummary]) -> str | None:
    """The lowest score among complete units, calibrated where their kind is."""
    for unit in units:
        score = unit.calibrated or unit.geo_mean
        if unit.state is UnitState.COMPLETE and score is not None:
            # Four places and one digit before them: text sorts as numbers do.
            weakest = min(weakest or score, score)
    return weakest
