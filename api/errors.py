"""The gateway's own errors: who asks, what they ask for, and how often.

No status codes here; `api.problems` maps every class to HTTP.
"""

from __future__ import annotations


class ApiError(Exception):
    """Anything the gateway itself refuses."""


class InvalidParameter(ApiError):
    """A value that can't be used; `parameter` is its path in the body, or its name."""

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class InvalidBody(InvalidParameter):
    """A body that is not JSON, or not of the shape that the route takes."""


class BodyTimeout(ApiError):
    """A body that did not arrive in time."""


class InvalidCursor(InvalidParameter):
    """A page cursor that this route never gave out."""


class Unauthenticated(ApiError):
    """A request that no living key vouches for."""


class MissingKey(Unauthenticated):
    """No key was presented."""


class InvalidKey(Unauthenticated):
    """A key that is malformed, mistyped or unknown: which of these is not said."""


class ExpiredKey(Unauthenticated):
    """A key past its expiry."""


class RevokedKey(Unauthenticated):
    """A key that was revoked."""


class Forbidden(ApiError):
    """A living key whose role does not reach this far; `needed` is the missing scope."""

    def __init__(self, message: str, needed: str) -> None:
        super().__init__(message)
        self.needed = needed


class TenantSuspended(ApiError):
    """The tenant may read its records, but spend nothing."""


class NotFound(ApiError):
    """Nothing of this kind has this id, or another tenant owns it: which of these is not said."""


class Conflict(ApiError):
    """The state of things does not allow this now."""


class RateLimited(ApiError):
    """A limit of the key or its tenant is used up: of a minute, or of what may run at once."""

    def __init__(self, limit: int, retry_after_s: int, *, unit: str = "requests") -> None:
        allowed = (
            f"{limit} requests at once"
            if unit == "concurrent-requests"
            else (f"{limit} {unit} a minute")
        )
        super().__init__(f"at most {allowed}; try again in {retry_after_s} s")
        self.limit = limit
        self.retry_after_s = retry_after_s
        self.unit = unit


class AuditBusy(ApiError):
    """Another audit is running; they take turns, so that they never slow what is billed."""


class AuditFailed(ApiError):
    """An audit's process ended without a result."""


class InvalidIdempotencyKey(ApiError):
    """An `Idempotency-Key` that is empty, too long or not printable."""


class IdempotencyMismatch(ApiError):
    """An `Idempotency-Key` that was used before, with another body or by a key of another mode."""


class RequestInFlight(ApiError):
    """An `Idempotency-Key` whose first request is still being answered."""


class GenerationFailed(ApiError):
    """A request that was admitted and then failed on our side; what it delivered is on record."""

    def __init__(self, request_id: str, why: str | None) -> None:
        reason = f": {why}" if why else ""
        super().__init__(
            f"generation {request_id} failed{reason}; what was delivered is on its receipt"
        )
        self.request_id = request_id


class NotSettled(ApiError):
    """A request that has ended, and whose settlement nobody can wait for now.

    The database does not take it, or the gateway is `stopping` and ended it.
    """

    def __init__(self, request_id: str, *, stopping: bool = False) -> None:
        super().__init__(
            f"the gateway is being stopped, and ended generation {request_id}, which is billed for "
            "what it delivered: read it later"
            if stopping
            else f"generation {request_id} has ended but can't be settled yet; it will be, and "
            "is billed for what it delivered: read it later, and do not send it again"
        )
        self.request_id = request_id


class AlreadyServed(ApiError):
    """Another gateway serves this database."""


class SharedMeter(ApiError):
    """Two replicas would divide the readings of one meter between their own requests."""


class SchemaMismatch(ApiError):
    """The database's schema is not the one this release was written for."""
