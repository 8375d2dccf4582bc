"""An error as a client may see it: RFC 9457, or OpenAI's error object below `/v1/`.

Only what `api.problems` calls public is shown; the rest is logged under an id that the client can
quote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog
import uuid_utils
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.openapi.datastructures import ResponseSpec
from litestar.types import ExceptionHandlersMap
from sqlalchemy import exc as sqlalchemy_errors

from api import errors as api_errors
from api import rates
from api.problems import TABLE, Problem, problem_of
from billing import errors as billing_errors
from billing.money import format_nano
from billing.receipt_documents import iso
from engine import errors as engine_errors

log = structlog.get_logger(__name__)

OPENAI_PREFIX = "/v1/"
TYPE_PREFIX = "/problems/"

_OPENAI_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    402: "insufficient_quota",
    403: "permission_error",
    429: "rate_limit_error",
}


@dataclass(frozen=True, slots=True)
class Report:
    """An error as a client may see it, in either shape."""

    problem: Problem
    detail: str | None
    parameter: str | None = None
    members: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    error_id: str | None = None  # of our own faults: what to quote, and to look for in the log

    def as_problem(self) -> dict[str, Any]:
        """RFC 9457, with `code`, and `parameter` where one is to blame."""
        members = {
            "type": TYPE_PREFIX + self.problem.code,
            "title": self.problem.title,
            "status": self.problem.status,
            "detail": self.detail,
            "instance": f"urn:uuid:{self.error_id}" if self.error_id else None,
            "code": self.problem.code,
            "parameter": self.parameter,
            **self.members,
        }
        return {name: value for name, value in members.items() if value is not None}

    def as_openai(self) -> dict[str, Any]:
        """OpenAI's error object, which its SDKs turn into exceptions."""
        status = self.problem.status
        message = self.detail or self.problem.title
        if self.error_id:
            message = f"{message} (error {self.error_id})"
        return {
            "error": {
                "message": message,
                "type": _OPENAI_TYPES.get(
                    status, "server_error" if status >= 500 else "invalid_request_error"
                ),
                "param": self.parameter,
                "code": self.problem.code,
                **self.members,
            }
        }


def report(error: Exception) -> Report:
    """Say what a client may know of an error; one it may know nothing of is logged, with its id."""
    found = problem_of(error)
    error_id = None
    if found.status >= 500 and not found.shows_detail:
        error_id = str(uuid_utils.uuid7())
        log.error("request.failed", error_id=error_id, code=found.code, exc_info=error)
    return Report(
        found,
        _detail(error) if found.shows_detail else None,
        _parameter(error),
        _members(error),
        _headers(error),
        error_id,
    )


def render(request: Request[Any, Any, Any], error: Exception) -> Response[dict[str, Any]]:
    """The response to a failed request; the application's one exception handler."""
    said = report(error)
    openai = request.scope["path"].startswith(OPENAI_PREFIX)
    return Response(
        said.as_openai() if openai else said.as_problem(),
        status_code=said.problem.status,
        media_type="application/json" if openai else "application/problem+json",
        headers=dict(said.headers),
    )


# For the application: every exception, ours or the framework's, ends in `render`.
exception_handlers: ExceptionHandlersMap = {Exception: render, HTTPException: render}


class ProblemView(msgspec.Struct, frozen=True):
    """RFC 9457. Some kinds of problem have members of their own besides these."""

    type: str
    title: str
    status: int
    code: str
    detail: str | None = None
    parameter: str | None = None
    instance: str | None = None


class OpenAIFault(msgspec.Struct, frozen=True):
    """What OpenAI's SDKs read of an error."""

    message: str
    type: str
    code: str
    param: str | None = None


class OpenAIFaultView(msgspec.Struct, frozen=True):
    """An error in OpenAI's shape; some kinds have members of their own besides these."""

    error: OpenAIFault


def documented(*errors: type[Exception], openai: bool = False) -> dict[int, ResponseSpec]:
    """The OpenAPI responses for errors that a route may answer with."""
    kinds: dict[int, list[Problem]] = {}
    for error in errors:
        kinds.setdefault(TABLE[error].status, []).append(TABLE[error])
    return {
        status: ResponseSpec(
            OpenAIFaultView if openai else ProblemView,
            generate_examples=False,
            description="; ".join(f"`{kind.code}`: {kind.title}" for kind in found),
            media_type="application/json" if openai else "application/problem+json",
        )
        for status, found in kinds.items()
    }


def _detail(error: Exception) -> str:
    match error:
        case ValidationException():
            return "; ".join(text for _, text in _validation_messages(error)) or error.detail
        case HTTPException():
            return error.detail
        case billing_errors.InsufficientCredit():
            needed, available = format_nano(error.needed_nano), format_nano(error.available_nano)
            return f"this needs {needed} {error.currency}; {available} are available"
        case billing_errors.BudgetExhausted():
            limit, spent, held = map(
                format_nano, (error.limit_nano, error.spent_nano, error.held_nano)
            )
            return f"the budget is {limit}: {spent} are spent and {held} are held by live requests"
        case billing_errors.CostCeilingTooLow():
            needed, ceiling = format_nano(error.needed_nano), format_nano(error.ceiling_nano)
            return (
                f"the input and one token can cost up to {needed} {error.currency}; "
                f"max_cost is {ceiling}"
            )
    return str(error)


def _parameter(error: Exception) -> str | None:
    match error:
        case ValidationException():
            return next((key for key, _ in _validation_messages(error) if key), None)
        case api_errors.InvalidParameter() | engine_errors.InvalidRequest():
            return error.parameter
        case engine_errors.ModelNotFound():
            return "model"
        case billing_errors.CostCeilingTooLow():
            return "max_cost"
    return None


def _validation_messages(error: ValidationException) -> list[tuple[str | None, str]]:
    """What Litestar found wrong with path, query and header parameters."""
    found: list[tuple[str | None, str]] = []
    for item in error.extra if isinstance(error.extra, list) else []:
        key = item.get("key")
        if key == "data":  # we decode bodies: left to Litestar is that there is none
            found.append(("body", "this needs a body"))
        else:
            found.append((key, f"{key}: {item['message']}" if key else item["message"]))
    return found


def _members(error: Exception) -> dict[str, Any]:
    """What a program may want to read from an error, besides its message."""
    members: dict[str, Any] = {}
    match error:
        case api_errors.Forbidden():
            members = {"needed_scope": str(error.needed)}
        case api_errors.GenerationFailed() | api_errors.NotSettled():
            members = {"request_id": error.request_id}
        case api_errors.RateLimited():
            members = {
                "retry_after_s": error.retry_after_s,
                "limit": error.limit,
                "unit": error.unit,
            }
        case billing_errors.InsufficientCredit():
            members = {
                "needed": format_nano(error.needed_nano),
                "available": format_nano(error.available_nano),
                "currency": error.currency,
            }
        case billing_errors.BudgetExhausted():
            members = {
                "budget_id": error.budget_id,
                "limit": format_nano(error.limit_nano),
                "spent": format_nano(error.spent_nano),
                "held": format_nano(error.held_nano),
                "needed": format_nano(error.needed_nano),
                "resets_at": None if error.resets_at_us is None else iso(error.resets_at_us),
            }
        case billing_errors.CostCeilingTooLow():
            members = {
                "needed": format_nano(error.needed_nano),
                "max_cost": format_nano(error.ceiling_nano),
                "currency": error.currency,
            }
        case billing_errors.InvalidTariff() | billing_errors.InvalidEconomics():
            members = {"errors": list(error.errors)}
        case billing_errors.InvalidReceipt():
            members = {"reason": str(error.reason)}
    return members


def _headers(error: Exception) -> dict[str, str]:
    headers: dict[str, str] = {}
    match error:
        case api_errors.MissingKey():
            headers = {"WWW-Authenticate": 'Bearer realm="dflash"'}
        case api_errors.Unauthenticated():
            headers = {"WWW-Authenticate": 'Bearer realm="dflash", error="invalid_token"'}
        case api_errors.RateLimited():
            headers = {
                "Retry-After": str(error.retry_after_s),
                "RateLimit-Policy": rates.policy(error.limit, error.unit),
                "RateLimit": f'"{error.unit}";r=0;t={error.retry_after_s}',
            }
        case api_errors.RequestInFlight() | engine_errors.EngineOverloaded():
            headers = {"Retry-After": "1"}
        case (
            engine_errors.EngineUnavailable()
            | sqlalchemy_errors.OperationalError()
            | sqlalchemy_errors.TimeoutError()
        ):
            headers = {"Retry-After": "5"}
        case HTTPException() if error.headers:
            headers = dict(error.headers)
    return headers
