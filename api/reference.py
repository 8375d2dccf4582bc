"""`/problems`: what each `type` of a problem means, for whoever follows the link in it. Public."""

from __future__ import annotations

import msgspec
from litestar import Router, get

from api import problems
from api.error_reports import documented
from api.errors import InvalidParameter, NotFound
from api.schemas import PathId


class ProblemKind(msgspec.Struct, frozen=True):
    """A kind of problem. Its code never changes meaning."""

    code: str
    status: int
    title: str


class ProblemKinds(msgspec.Struct, frozen=True):
    """Every kind of problem, by code."""

    items: list[ProblemKind]


@get("/", summary="List the kinds of problems", sync_to_thread=False)
def list_problems() -> ProblemKinds:
    """Every kind that this gateway answers with."""
    return ProblemKinds([_view(kind) for _, kind in sorted(problems.kinds().items())])


@get(
    "/{code:str}",
    summary="Explain a kind of problem",
    responses=documented(InvalidParameter, NotFound),
    sync_to_thread=False,
)
def read_problem(code: PathId) -> ProblemKind:
    """One kind, by the last part of a problem's `type`."""
    kind = problems.kinds().get(code)
    if kind is None:
        raise NotFound(f"no problem {code}")
    return _view(kind)


def _view(kind: problems.Problem) -> ProblemKind:
    return ProblemKind(kind.code, kind.status, kind.title)


problems_router = Router("/problems", route_handlers=[list_problems, read_problem], tags=["errors"])
