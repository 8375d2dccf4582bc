"""Coming in and going out: sign-in by key, sign-out, and the way to one's first page."""

from __future__ import annotations

from typing import Any

from litestar import Response, get, post
from litestar.response import Redirect

from dashboards.access import home
from dashboards.injected import AForm, AHost, AViewer
from dashboards.rendering import page, url
from dashboards.sessions import (
    NotSignedIn,
    PageRequest,
    Viewer,
    current_viewer,
    notify,
    sign_in,
    sign_out,
)
from metering.database import snapshot

KEY_LENGTH_MAX = 200


@get("/", sync_to_thread=False)
def first_page(viewer: AViewer) -> Redirect:
    """Lead somebody signed in to the first page of their role."""
    return Redirect(url(home(viewer)))


@get("/sign-in", sync_to_thread=True)
def sign_in_page(request: PageRequest, host: AHost) -> Response[Any]:
    """The form that takes a key; somebody signed in already is led on."""
    try:
        return Redirect(url(home(current_viewer(request, host))))
    except NotSignedIn:
        return page(request, "sign_in.html")


@post("/sign-in", sync_to_thread=True)
def take_key(request: PageRequest, host: AHost, form: AForm) -> Redirect:
    """Start a session for a living key; a wrong one is told no more than that."""
    key = form.get("key", "").strip()
    with snapshot(host.database) as connection:
        principal = host.authenticate(connection, key) if len(key) <= KEY_LENGTH_MAX else None
    if principal is None:
        notify(request, "This key is not valid here: wrong, expired or revoked.", failed=True)
        return Redirect(url("/sign-in"))
    after = sign_in(request, principal)
    viewer = Viewer(principal.key_id, principal.role, principal.tenant_id)
    return Redirect(after or url(home(viewer)))


@post("/sign-out", sync_to_thread=False)
def leave(request: PageRequest, form: AForm) -> Redirect:
    """End the session."""
    sign_out(request)
    return Redirect(url("/sign-in"))


HANDLERS = (first_page, sign_in_page, take_key, leave)
