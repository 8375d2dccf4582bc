"""Who is signed in: an encrypted cookie names a key, and every request asks whether it still lives.

The cookie never holds the key's secret. Because the key is looked up again on each request, a
session ends with its key, whatever the cookie says. Every form carries a token that only the
session knows, and a handler gets to a form's fields only through `checked_form`.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Any, TypeAlias

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.exceptions import (
    PermissionDeniedException,
    SerializationException,
    ValidationException,
)
from litestar.middleware import DefineMiddleware
from litestar.middleware.session.client_side import ClientSideSessionBackend, CookieBackendConfig

from dashboards.protocols import Host, Principal
from metering import clock
from metering.database import snapshot

COOKIE = "dflash_session"
CSRF_FIELD = "csrf_token"
SESSION_LIFETIME_S = 12 * 3600
AFTER_LENGTH_MAX = 1024

PageRequest: TypeAlias = Request[Any, Any, Any]


class NotSignedIn(Exception):
    """The page needs somebody signed in, and nobody is."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """Somebody signed in, as of this request. `tenant_id` is null for operators and reviewers."""

    key_id: str
    role: str
    tenant_id: str | None


@dataclass(frozen=True, slots=True)
class Notice:
    """One sentence for the next page: what was done, or why it was not."""

    text: str
    failed: bool


class _SessionBackend(ClientSideSessionBackend):
    """Litestar's encrypted cookie, for which a forged value is no session instead of an error."""

    async def load_from_connection(self, connection: ASGIConnection[Any, Any, Any, Any]) -> Any:
        try:
            return await super().load_from_connection(connection)
        except (SerializationException, ValueError, KeyError, TypeError):
            return {}

    def __deepcopy__(self, _memo: dict[int, Any]) -> _SessionBackend:
        # A router is copied when it is mounted, and a cipher can't be; nothing here ever changes.
        return self


@dataclass
class _SessionConfig(CookieBackendConfig):
    _backend_class = _SessionBackend


def session_middleware(secret: bytes, *, path: str, secure: bool) -> DefineMiddleware:
    """The cookie of the pages under `path`; `secret` may be of any length, 32 bytes or more."""
    if len(secret) < 32:
        raise ValueError("the session secret must have at least 32 bytes")
    return _SessionConfig(
        secret=hashlib.sha256(b"dashboard session\0" + secret).digest(),
        key=COOKIE,
        path=path,
        max_age=SESSION_LIFETIME_S,
        httponly=True,
        samesite="strict",
        secure=secure,
    ).middleware


def sign_in(request: PageRequest, principal: Principal) -> str | None:
    """Start a session for a key, with a new token; gives the page that was asked for, if any."""
    after = request.session.get("after")
    request.set_session(
        {
            "key_id": principal.key_id,
            "signed_in_at_us": clock.now_us(),
            "csrf": secrets.token_urlsafe(32),
        }
    )
    return after if isinstance(after, str) else None


def sign_out(request: PageRequest) -> None:
    """End the session and drop its cookie."""
    request.session.clear()


def current_viewer(request: PageRequest, host: Host) -> Viewer:
    """Who is signed in; asks whether the key still lives. Raises NotSignedIn."""
    session = request.session
    key_id = session.get("key_id")
    since_us = session.get("signed_in_at_us", 0)
    if not key_id or clock.now_us() - since_us > SESSION_LIFETIME_S * 1_000_000:
        raise NotSignedIn
    with snapshot(host.database) as connection:
        principal = host.recall(connection, key_id)
    if principal is None:
        sign_out(request)
        raise NotSignedIn
    viewer = Viewer(principal.key_id, principal.role, principal.tenant_id)
    request.state.viewer = viewer
    return viewer


def known_viewer(request: PageRequest) -> Viewer | None:
    """Whom this request has already been found to come from, for the frame around a page."""
    viewer = request.state.get("viewer")
    return viewer if isinstance(viewer, Viewer) else None


def return_here_after_sign_in(request: PageRequest) -> None:
    """Remember the page asked for: in the session, so that no link can choose where to land."""
    target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    if request.method == "GET" and len(target) <= AFTER_LENGTH_MAX:
        request.session["after"] = target


def csrf_token(request: PageRequest) -> str:
    """The session's token, made when a first form needs it."""
    token = request.session.get("csrf")
    if not isinstance(token, str):
        token = request.session["csrf"] = secrets.token_urlsafe(32)
    return token


async def checked_form(request: PageRequest) -> dict[str, str]:
    """The fields of a form that this session's own page sent; PermissionDenied for any other.

    ValidationException for what no page of ours sends: a field that comes twice, of which one part
    of the code might read the first and another the last, a file, or a text with a NUL, which is
    none that a database takes.
    """
    fields = await request.form()
    expected = request.session.get("csrf")
    sent = fields.get(CSRF_FIELD)
    if not isinstance(expected, str) or not isinstance(sent, str):
        raise PermissionDeniedException("This form has expired. Load the page again.")
    if not hmac.compare_digest(expected.encode(), sent.encode()):
        raise PermissionDeniedException("This form has expired. Load the page again.")
    texts: dict[str, str] = {}
    for name, value in fields.multi_items():
        if name in texts:
            raise ValidationException("A form may not hold a field twice.")
        if not isinstance(value, str):
            raise ValidationException("A form here takes no file.")
        if "\0" in value:
            raise ValidationException("A form's text may not contain the character NUL.")
        texts[name] = value
    return texts


def notify(request: PageRequest, text: str, *, failed: bool = False) -> None:
    """Leave a sentence for the next page this session sees."""
    request.session["notice"] = [text, failed]


def take_notice(request: PageRequest) -> Notice | None:
    """The sentence left for this page, once."""
    left = request.session.pop("notice", None)
    return Notice(str(left[0]), bool(left[1])) if left else None
