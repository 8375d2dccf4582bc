"""What a page shows when it can't be shown: one plain sentence, and the way back."""

from __future__ import annotations

from typing import Any

import structlog
from litestar import Response, get
from litestar.exceptions import (
    HTTPException,
    InternalServerException,
    NotFoundException,
    PermissionDeniedException,
)
from litestar.response import Redirect
from litestar.types import ExceptionHandlersMap

from dashboards.rendering import page, url
from dashboards.sessions import NotSignedIn, PageRequest, return_here_after_sign_in

log = structlog.get_logger(__name__)

TITLES: tuple[tuple[type[HTTPException], str], ...] = (
    (NotFoundException, "Not found"),
    (PermissionDeniedException, "Not allowed"),
    (InternalServerException, "Something went wrong"),
)


# The router does not turn back from a parameter, so those need an "anything else" of their own.
@get(
    ["/{rest:path}", "/receipts/{one:str}/{rest:path}", "/reviews/{one:str}/{rest:path}"],
    sync_to_thread=False,
)
def no_such_page() -> Response[Any]:
    """Answer every address below the prefix that no page has."""
    raise NotFoundException("There is no page at this address.")


def ask_to_sign_in(request: PageRequest, _error: Exception) -> Response[Any]:
    """Send a stranger to the door, remembering which page was asked for."""
    return_here_after_sign_in(request)
    return Redirect(url("/sign-in"))


def show_refusal(request: PageRequest, error: HTTPException) -> Response[Any]:
    """Say why the page is refused, with the status that the error carries."""
    response = page(request, "error.html", title=_title(error), text=error.detail)
    response.status_code = error.status_code
    return response


def show_failure(request: PageRequest, error: Exception) -> Response[Any]:
    """Log an unexpected error and show that it happened, nothing of what it was."""
    log.error("page.failed", path=request.url.path, exc_info=error)
    return show_refusal(
        request, InternalServerException("The page could not be made. It has been logged.")
    )


def _title(error: HTTPException) -> str:
    return next((title for kind, title in TITLES if isinstance(error, kind)), "Not possible")


EXCEPTION_HANDLERS: ExceptionHandlersMap = {
    NotSignedIn: ask_to_sign_in,
    HTTPException: show_refusal,
    Exception: show_failure,
}
