"""`/review`: the queue of doubtful outputs, for reviewers and operators."""

from __future__ import annotations

from typing import Annotated

from litestar import Router, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter
from sqlalchemy import Engine as Database

from api import audit, cursors
from api.auth import Principal, Scope, requires
from api.bodies import StrictBody
from api.error_reports import documented
from api.errors import Forbidden, InvalidCursor, InvalidParameter, Unauthenticated
from api.review import account_routes
from api.review.schemas import (
    ClaimView,
    OpinionView,
    ReviewDetail,
    ReviewItemView,
    ReviewPage,
    VerdictRequest,
)
from api.schemas import CursorQuery, LimitQuery, PathId
from billing import lineages, review, review_opinions, review_texts
from billing.errors import InvalidVerdict, ReviewConflict, ReviewItemNotFound
from billing.receipts import Signer
from billing.review import ReviewState
from metering.database import snapshot, transaction

# Litestar keeps the name `state` for itself, and would name the alias's field in its own error.
StateQuery = Annotated[
    str,
    QueryParameter(
        name="state",
        description="Which items",
        schema_extra={"enum": [state.value for state in ReviewState]},
    ),
]


@get(
    "/",
    guards=[requires(Scope.REVIEW)],
    summary="List review items",
    responses=documented(InvalidCursor, Unauthenticated, Forbidden),
    sync_to_thread=True,
)
def list_items(
    database: NamedDependency[Database],
    wanted: StateQuery = ReviewState.QUEUED.value,
    cursor: CursorQuery = None,
    limit: LimitQuery = cursors.PAGE_DEFAULT,
) -> ReviewPage:
    """Items of one state, without their texts."""
    state = _state(wanted)
    listing = f"review/{state}"
    after = cursors.decode(listing, cursor)
    with snapshot(database) as connection:
        found = review.items(connection, state, limit + 1, after)
    shown, following = cursors.page(listing, found, limit, lambda row: (row.queued_at_us, row.id))
    return ReviewPage([ReviewItemView.of(item) for item in shown], following)


@get(
    "/{item_id:str}",
    guards=[requires(Scope.REVIEW)],
    summary="Read a review item",
    responses=documented(InvalidParameter, ReviewItemNotFound, Unauthenticated, Forbidden),
    sync_to_thread=True,
)
def read_item(database: NamedDependency[Database], item_id: PathId) -> ReviewDetail:
    """An item with what was asked and answered."""
    with snapshot(database) as connection:
        item = review.item(connection, item_id)
        shown = review_texts.texts(connection, item)
        opinions = review_opinions.shown(connection, item)
    return ReviewDetail(
        item=ReviewItemView.of(item),
        prompt=shown.prompt,
        output=None if shown.output is None else shown.output.text,
        edited_output=shown.edited_output,
        opinions=[OpinionView.of(each) for each in opinions],
    )


@post(
    "/{item_id:str}/claim",
    guards=[requires(Scope.REVIEW)],
    summary="Claim a review item",
    status_code=200,
    responses=documented(
        InvalidParameter, ReviewConflict, ReviewItemNotFound, Unauthenticated, Forbidden
    ),
    sync_to_thread=True,
)
def claim_item(
    principal: NamedDependency[Principal], database: NamedDependency[Database], item_id: PathId
) -> ClaimView:
    """Take an item for the length of a lease, or renew one's own; older tokens stop working."""
    with transaction(database) as connection:
        reviewer = lineages.of_key(connection, principal.key_id)
        token = review.claim(connection, item_id, reviewer)
        item = review.item(connection, item_id)
        audit.write(
            connection,
            actor=principal.key_id,
            action="review.claimed",
            subject=item_id,
            tenant_id=item.tenant_id,
            token=token,
        )
    return ClaimView(ReviewItemView.of(item), token)


@post(
    "/{item_id:str}/resolve",
    guards=[requires(Scope.REVIEW)],
    summary="Give a verdict",
    status_code=200,
    responses=documented(
        InvalidParameter,
        InvalidVerdict,
        ReviewConflict,
        ReviewItemNotFound,
        Unauthenticated,
        Forbidden,
    ),
    sync_to_thread=True,
)
def resolve_item(
    data: JSONBody[VerdictRequest],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    signer: NamedDependency[Signer],
    item_id: PathId,
) -> ReviewItemView:
    """Give an opinion on a claimed item. Where it decides, the fee becomes the reviewers' due, a
    rejection refunds the output, and the outcome is signed beside the receipt; else the item waits
    for another reviewer. The same again changes nothing; another opinion is refused then.
    """
    with transaction(database) as connection:
        before = review.item(connection, item_id)
        item = review.resolve(
            connection,
            item_id,
            lineages.of_key(connection, principal.key_id),
            data.token,
            verdict=data.verdict,
            reasons=data.reasons,
            note=data.note,
            edited_output=review_texts.corrected(connection, before, data.edited_output),
            second_opinion=data.second_opinion,
            signer=signer,
        )
        if before.opinions != item.opinions:
            audit.write(
                connection,
                actor=principal.key_id,
                action="review.resolved",
                subject=item_id,
                tenant_id=item.tenant_id,
                verdict=data.verdict,
                decided=item.state is ReviewState.RESOLVED,
            )
    return ReviewItemView.of(item)


def _state(wanted: str) -> ReviewState:
    try:
        return ReviewState(wanted)
    except ValueError:
        raise InvalidParameter(f"state is one of {', '.join(ReviewState)}", "state") from None


review_router = Router(
    "/review",
    route_handlers=[list_items, *account_routes.ROUTES, read_item, claim_item, resolve_item],
    dto=StrictBody,
    return_dto=None,
    tags=["review"],
)
