"""The facts that usage is made of, and the summary that a request's facts fold into.

An event's id is derived from what it states, `<request id>/<kind>/<index>`, so a replay is a no-op
and the same id with another body is a conflict. Bodies carry integers and decimal strings only:
what is priced must not depend on how a float prints.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from engine.records import DraftCounters


class EventKind(StrEnum):
    """What an event states."""

    BLOCK = "block"  # tokens were emitted
    ENERGY = "energy"  # energy of steps up to some block has settled
    TERMINAL = "terminal"  # the request is over; nothing follows


class RequestStatus(StrEnum):
    """Where a request stands. The last four are final, and every request reaches one."""

    ADMITTED = "admitted"
    RUNNING = "running"
    COMPLETED = "completed"
    REFUSED = "refused"
    CANCELLED = "cancelled"
    FAILED = "failed"


FINAL_STATUSES = frozenset(
    {
        RequestStatus.COMPLETED,
        RequestStatus.REFUSED,
        RequestStatus.CANCELLED,
        RequestStatus.FAILED,
    }
)


class EndedBy(StrEnum):
    """Whose decision ended the output: open text is the tenant's fragment, or nobody's fault."""

    MODEL = "model"  # EOS or a stop string
    TENANT = "tenant"  # max_tokens, max_cost, max_joules, deadline, cancellation
    OPERATOR = "operator"  # a hold that credit could not extend, a crash, a limit of ours


class EnergyClass(StrEnum):
    """How joules were had. Classes are never summed into one number."""

    MEASURED = "measured"
    ESTIMATED = "estimated"
    REPORTED = "reported"
    UNAVAILABLE = "unavailable"


class ConfidenceTier(StrEnum):
    """A score's tier: standard from 0.95, review below 0.70, reduced between."""

    STANDARD = "standard"
    REDUCED = "reduced"
    REVIEW = "review"


class UnitState(StrEnum):
    """Whether a unit closed, or its text was still open at the end."""

    COMPLETE = "complete"
    FRAGMENT = "fragment"


class UnitSummary(msgspec.Struct, frozen=True):
    """One semantic unit of the output. `byte_start:byte_end` is half-open, in UTF-8 bytes.

    Scores are of the tokens that the model chose. They are null where none ends in the unit (one
    token closed two brackets, a grammar forced them all), or where one that does has no
    log-probability.
    """

    index: int
    kind: str  # "sentence", "header", "statement", "member", ...
    state: UnitState
    byte_start: int
    byte_end: int
    tokens: int
    sum_logprob: str | None  # nats, decimal with 6 places
    geo_mean: str | None  # exp(sum / tokens), decimal with 4 places
    min_prob: str | None  # decimal with 4 places
    tier: ConfidenceTier | None  # read from `calibrated` where there is one, else from `geo_mean`
    calibrated: str | None = None  # 4 places; null: its kind has no curve


class ConfidenceSummary(msgspec.Struct, frozen=True):
    """The output's joint probability under the raw verifier: EOS included, forced tokens apart."""

    tokens: int  # that the model chose
    sum_logprob: str  # nats, 6 places
    geo_mean: str  # 4 places
    min_prob: str  # 4 places
    calibrated: str | None  # 4 places; null while no calibrator is loaded
    basis: str  # "geo_mean" or "calibrated": what the tier was read from
    tier: ConfidenceTier


class EnergySummary(msgspec.Struct, frozen=True):
    """A request's share of the meter. Microjoules are null, never 0, when unavailable."""

    energy_class: EnergyClass
    energy_uj: int | None
    shown_uj: int | None  # floored to 0.1 J: what the tenant sees and pays
    source: str  # "nvml_total_energy", "rapl_powercap", "cpu_time", "none", ...
    scope: str  # "gpu_board", "cpu_package", "process", "none", ...
    method: str  # "affine-shapley/1"
    uncertainty_pct: int | None
    # Where the method's coefficients come from: "default" (measured nowhere), "configured",
    # "calibration/<version>/<hash>", "none" where it has none; null on records older than this.
    weights: str | None = None
    devices: tuple[str, ...] = ()  # "GPU-<uuid>", ...
    update_period_us: int | None = None  # how often the counter moves, as measured


class RequestSummary(msgspec.Struct, frozen=True):
    """A request, folded from its events: the only input of rating besides the tariff.

    It outlives the block detail, so that any tariff can be applied to the past exactly.
    """

    request_id: str
    tenant_id: str
    model: str
    tariff_version_id: str
    status: RequestStatus
    finish_reason: str
    ended_by: EndedBy
    input_tokens: int
    output_tokens: int
    unattached_tokens: int  # output tokens of no unit: an EOS after no text at all
    blocks: int
    verified_blocks: int  # blocks that accepted at least one drafted token
    output_sha256: str
    segmenter: str  # "units/1+ts-python@0.25.0+...", every grammar with its version
    units: tuple[UnitSummary, ...]
    confidence: ConfidenceSummary | None  # null when nothing was chosen, or a score is missing
    information_ubits: int | None  # microbits; null when a score is missing
    energy: EnergySummary
    drafting: DraftCounters
    review_reason: str | None  # "request_confidence", "unit_confidence", "missing_score", "audit"
    started_at_us: int  # admission
    ended_at_us: int  # event time of the terminal event, which decides the billing period
    cached_input_tokens: int = 0  # of the input, not computed for this request
    forced_tokens: int = 0  # of the output: a grammar left no alternative, so they have no score
    calibration: str | None = None  # the version that calibrated scores are of; null: none loaded
    # How likely the audit was to sample it, in millionths; null: it did not.
    audit_ppm: int | None = None
    # It asked for green energy, and energy decided where it ran: a tariff's green price is due.
    green: bool = False
