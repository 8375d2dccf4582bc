"""What went wrong, as HTTP says it: the one place that knows status codes.

`TABLE` maps every error class of every package. What isn't in it is our fault: the client gets an
id, the log gets the rest (`api.error_reports`).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from litestar.exceptions import HTTPException, InternalServerException, ValidationException
from sqlalchemy import exc as sqlalchemy_errors

from api import errors as api_errors
from billing import errors as billing_errors
from engine import errors as engine_errors
from metering import errors as metering_errors


class Problem(msgspec.Struct, frozen=True):
    """A kind of error. `code` is stable; `shows_detail` says whether its message is public."""

    status: int
    code: str
    title: str
    shows_detail: bool = True


INTERNAL = Problem(500, "internal_error", "Something went wrong on our side", False)
INVALID_REQUEST = Problem(400, "invalid_request", "The request is not valid")
INVALID_PARAMETER = Problem(400, "invalid_parameter", "A parameter is not valid")
NOT_FOUND = Problem(404, "not_found", "There is no such thing")
DATABASE_DOWN = Problem(503, "database_unavailable", "The database did not answer", False)

TABLE: Mapping[type[Exception], Problem] = {
    # engine
    engine_errors.EngineError: INTERNAL,
    engine_errors.InvalidModelFile: INTERNAL,
    engine_errors.UnsupportedModel: INTERNAL,
    engine_errors.InvalidConfig: INTERNAL,
    engine_errors.ModelNotFound: Problem(404, "model_not_found", "This model is not served here"),
    engine_errors.InvalidRequest: INVALID_REQUEST,
    engine_errors.PromptTooLong: Problem(
        400, "context_length_exceeded", "The request does not fit the model's context"
    ),
    engine_errors.EngineOverloaded: Problem(503, "overloaded", "The queue is full; try again"),
    engine_errors.EngineUnavailable: Problem(
        503, "engine_unavailable", "The engine is not running; try again", False
    ),
    # metering
    metering_errors.MeteringError: INTERNAL,
    metering_errors.EventConflict: INTERNAL,
    metering_errors.UnknownRequest: Problem(409, "request_not_live", "The request has ended"),
    metering_errors.SourceUnavailable: INTERNAL,
    metering_errors.InvalidEnergySettings: INTERNAL,
    metering_errors.NotCalibrated: INTERNAL,
    metering_errors.InvalidVerdicts: INTERNAL,
    metering_errors.InvalidTrace: INTERNAL,
    metering_errors.InvalidCalibration: INTERNAL,
    # billing
    billing_errors.BillingError: INTERNAL,
    billing_errors.InvalidAmount: Problem(400, "invalid_amount", "This is not an amount"),
    billing_errors.InvalidTariff: Problem(422, "invalid_tariff", "The tariff is not valid"),
    billing_errors.TariffConflict: Problem(
        409, "tariff_conflict", "Published tariffs don't allow this"
    ),
    billing_errors.NoTariff: Problem(409, "no_tariff", "There is no such tariff in force"),
    billing_errors.UnknownTenant: NOT_FOUND,
    billing_errors.UnknownRequest: NOT_FOUND,
    billing_errors.UnratableSummary: INTERNAL,
    billing_errors.TransferConflict: Problem(
        409, "transfer_conflict", "This was booked before, differently", False
    ),
    billing_errors.Overdraft: INTERNAL,
    billing_errors.InsufficientCredit: Problem(
        402, "insufficient_credit", "The credit does not cover this request"
    ),
    billing_errors.PaymentOverdue: Problem(
        402, "payment_overdue", "An invoice is overdue: nothing more is had on account"
    ),
    billing_errors.BudgetExhausted: Problem(
        402, "budget_exhausted", "A budget does not let this request through"
    ),
    billing_errors.InvalidBudget: Problem(422, "invalid_budget", "The budget is not valid"),
    billing_errors.UnknownBudget: NOT_FOUND,
    billing_errors.InvalidRetention: Problem(
        422, "invalid_retention", "Content can't be kept for that long"
    ),
    billing_errors.InvalidGrant: Problem(422, "invalid_grant", "The grant is not valid"),
    billing_errors.UnknownGrant: NOT_FOUND,
    billing_errors.NothingToReverse: Problem(
        409, "nothing_to_reverse", "There is nothing left to give back"
    ),
    billing_errors.CostCeilingTooLow: Problem(
        400, "cost_ceiling_too_low", "max_cost does not cover the input and one token"
    ),
    billing_errors.HoldConflict: INTERNAL,
    billing_errors.ReviewItemNotFound: NOT_FOUND,
    billing_errors.ReviewConflict: Problem(
        409, "review_conflict", "The review item is not yours to take now"
    ),
    billing_errors.InvalidVerdict: Problem(422, "invalid_verdict", "The verdict is not valid"),
    billing_errors.InvalidPayout: Problem(
        409, "invalid_payout", "The reviewer is not due this amount"
    ),
    billing_errors.InvalidReceipt: Problem(422, "invalid_receipt", "The receipt proves nothing"),
    billing_errors.InvalidSigningKey: INTERNAL,
    billing_errors.InvalidPeriod: Problem(400, "invalid_period", "This period cannot be billed"),
    billing_errors.InvoiceNotFound: NOT_FOUND,
    billing_errors.InvoiceConflict: Problem(
        409, "invoice_conflict", "The invoice, as it stands, does not allow this"
    ),
    billing_errors.PaymentsDisabled: Problem(
        409, "payments_disabled", "There is no payment provider to pay through"
    ),
    billing_errors.PaymentConflict: Problem(
        409, "payment_conflict", "The payment, as it stands, does not allow this"
    ),
    billing_errors.InvalidWebhook: Problem(
        400, "invalid_webhook", "The webhook is not signed as it should be", False
    ),
    billing_errors.ProviderFailed: Problem(
        503, "payment_provider_unavailable", "The payment provider did not answer; try again", False
    ),
    billing_errors.ProviderRefused: Problem(
        502, "payment_provider_refused", "The payment provider will not do this", False
    ),
    billing_errors.InvalidEconomics: Problem(
        422, "invalid_economics", "These figures can't be reckoned with"
    ),
    billing_errors.UsageGone: Problem(
        409, "usage_gone", "This usage can't be rated again: its summaries are gone"
    ),
    billing_errors.ExportUnavailable: Problem(
        409, "export_unavailable", "This installation cannot write such a file"
    ),
    billing_errors.CannotAudit: Problem(
        409, "cannot_audit", "This receipt's work can't be done again"
    ),
    # the gateway itself
    api_errors.ApiError: INTERNAL,
    api_errors.InvalidParameter: INVALID_PARAMETER,
    api_errors.InvalidBody: Problem(400, "invalid_body", "The body is not valid"),
    api_errors.BodyTimeout: Problem(408, "body_timeout", "The body did not arrive in time"),
    api_errors.InvalidCursor: Problem(400, "invalid_cursor", "The page cursor is not valid"),
    api_errors.Unauthenticated: Problem(401, "unauthenticated", "A valid key is needed"),
    api_errors.MissingKey: Problem(401, "missing_key", "A key is needed"),
    api_errors.InvalidKey: Problem(401, "invalid_key", "The key is not valid"),
    api_errors.ExpiredKey: Problem(401, "expired_key", "The key has expired"),
    api_errors.RevokedKey: Problem(401, "revoked_key", "The key was revoked"),
    api_errors.Forbidden: Problem(403, "forbidden", "The key's role does not allow this"),
    api_errors.TenantSuspended: Problem(403, "tenant_suspended", "The tenant is suspended"),
    api_errors.NotFound: NOT_FOUND,
    api_errors.Conflict: Problem(409, "conflict", "Things as they stand don't allow this"),
    api_errors.RateLimited: Problem(429, "rate_limited", "Too many requests"),
    api_errors.AuditBusy: Problem(503, "audit_busy", "Another audit is running; try again"),
    api_errors.AuditFailed: INTERNAL,
    api_errors.InvalidIdempotencyKey: Problem(
        400, "invalid_idempotency_key", "The Idempotency-Key is not valid"
    ),
    api_errors.IdempotencyMismatch: Problem(
        422, "idempotency_mismatch", "The Idempotency-Key belongs to another request"
    ),
    api_errors.RequestInFlight: Problem(
        409, "request_in_flight", "The first request with this Idempotency-Key is still running"
    ),
    api_errors.AlreadyServed: INTERNAL,
    api_errors.SharedMeter: INTERNAL,
    api_errors.SchemaMismatch: INTERNAL,
    api_errors.NotSettled: Problem(503, "not_settled", "The answer can't be settled yet"),
    api_errors.GenerationFailed: Problem(500, "generation_failed", "The generation failed"),
    # what SQLAlchemy raises when the database is gone, or busy beyond its timeout
    sqlalchemy_errors.OperationalError: DATABASE_DOWN,
    sqlalchemy_errors.TimeoutError: DATABASE_DOWN,
}

# Nobody reads it: the client left while its body was read, which the framework words so.
CLIENT_LEFT = "client disconnected prematurely"
CLIENT_CLOSED_REQUEST = Problem(499, "client_closed_request", "The client went away", False)

# What the framework itself raises, by status; any other is INTERNAL.
FRAMEWORK: Mapping[int, Problem] = {
    400: INVALID_REQUEST,
    404: Problem(404, "no_such_address", "There is nothing at this address", False),
    405: Problem(405, "method_not_allowed", "This address does not take this method", False),
    413: Problem(413, "too_large", "The body is too large", False),
    415: Problem(415, "unsupported_media_type", "The body has to be JSON", False),
}


def problem_of(error: Exception) -> Problem:
    """The kind of an error: its class's entry, or that of the nearest ancestor."""
    if isinstance(error, ValidationException):
        return INVALID_PARAMETER
    if isinstance(error, InternalServerException) and error.detail == CLIENT_LEFT:
        return CLIENT_CLOSED_REQUEST
    if isinstance(error, HTTPException):
        return FRAMEWORK.get(error.status_code, INTERNAL)
    for kind in type(error).__mro__:
        if kind in TABLE:
            return TABLE[kind]
    return INTERNAL


def kinds() -> dict[str, Problem]:
    """Every kind of problem, by its code."""
    return {kind.code: kind for kind in (*TABLE.values(), *FRAMEWORK.values())}
