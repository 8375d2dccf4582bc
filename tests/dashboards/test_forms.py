"""Every form of every page, as found by following links, sent back in every wrong way."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import httpx
import pytest
from billing_cases import unit
from browser_pages import World
from litestar import Litestar
from litestar.testing import TestClient
from sqlalchemy import Engine, inspect, text

from api.roles import Role
from billing import review
from billing.review_items import Verdict
from metering.database import snapshot, transaction

ROLES = ("owner", "finance", "developer", "operator", "reviewer")
CSRF = "csrf_token"
PAGES_MAX = 60
Pairs = list[tuple[str, Any]]
# What nothing but a choice or a hidden figure of the page's own may be replaced by.
WRONG = (
    "",
    " ",
    "-1",
    "0",
    "0x1",
    "1e9",
    "NaN",
    "Infinity",
    "\N{FULLWIDTH DIGIT ONE}",
    "\N{ARABIC-INDIC DIGIT THREE}",
    "9" * 9,
    "9" * 400,
    "x" * 100_000,
    "'; --",
    "\N{RIGHT-TO-LEFT OVERRIDE}",
    "\ud800".encode(errors="surrogatepass"),
    b"\xff\xfe",
)


@dataclass
class Form:
    """A form as a page shows it, filled in as a person might."""

    action: str
    fields: dict[str, str] = field(default_factory=dict)
    fixed: set[str] = field(default_factory=set)  # hidden, or one of few
    required: set[str] = field(default_factory=set)
    longest: dict[str, int] = field(default_factory=dict)


class Page(HTMLParser):
    """The links and the posted forms of a page."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.forms: list[Form] = []
        self._form: Form | None = None
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "a" and given.get("href", "").startswith("/dashboard"):
            self.links.append(given["href"])
        elif tag == "form" and given.get("method") == "post":
            self._form = Form(given["action"])
            self.forms.append(self._form)
        elif self._form is not None and (name := given.get("name")):
            self._add(self._form, tag, name, given)

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._form = None

    def _add(self, form: Form, tag: str, name: str, given: dict[str, str]) -> None:
        if given.get("type") == "checkbox":
            return
        form.fields.setdefault(name, given.get("value", "a text"))
        if tag == "button" or given.get("type") == "hidden":
            form.fixed.add(name)
        if "required" in given:
            form.required.add(name)
        if "maxlength" in given:
            form.longest[name] = int(given["maxlength"])


class Wrong(NamedTuple):
    """One way to send a form back, and how it is called in a failure."""

    said: str
    pairs: Pairs


class Visitor:
    """A browser of one role."""

    def __init__(self, client: TestClient[Litestar], key: str | None) -> None:
        self.client = client
        client.cookies.clear()
        (self.door,) = Page(client.get("/dashboard/sign-in").text).forms
        if key is not None:
            self.send(self.door.action, [*(self.door.fields | {"key": key}).items()])
        self.cookies = dict(client.cookies)
        self.forms = {form.action: form for form in self._found()}
        self.token = next(iter(self.forms.values())).fields[CSRF]

    def send(self, action: str, pairs: Pairs) -> httpx.Response:
        headers = {"content-type": "application/x-www-form-urlencoded"}
        return self.client.post(action, content=urlencode(pairs), headers=headers)

    def back(self) -> None:
        """Go on with this visitor's own session."""
        self.client.cookies.clear()
        for name, value in self.cookies.items():
            self.client.cookies.set(name, value, path="/dashboard")

    def _found(self) -> Iterator[Form]:
        """The forms of all pages that can be reached by links."""
        seen: set[str] = set()
        waiting = deque(["/dashboard/"])
        while waiting and len(seen) < PAGES_MAX:
            path = waiting.popleft()
            if path in seen:
                continue
            seen.add(path)
            answer = self.client.get(path)
            if answer.headers["content-type"].startswith("text/html"):
                found = Page(answer.text)
                waiting.extend(found.links)
                yield from found.forms


def wrong_ways(form: Form, name: str) -> Iterator[Wrong]:
    """Every way in which one field may be wrong."""
    rest = [pair for pair in form.fields.items() if pair[0] != name]
    good = (name, form.fields[name])
    yield Wrong("twice", [*rest, good, good])
    yield Wrong("NUL", [*rest, (name, "a\0b")])
    if name in form.longest:
        yield Wrong("too long", [*rest, (name, "x" * (form.longest[name] + 1))])
    if name in form.fixed | form.required:
        yield Wrong("missing", rest)
        yield Wrong("blank", [*rest, (name, " ")])
    if name in form.fixed:
        for value in WRONG:
            yield Wrong(repr(value)[:40], [*rest, (name, value)])


def stored(database: Engine) -> dict[str, list[str]]:
    with snapshot(database) as connection:
        names = inspect(connection).get_table_names()
        return {
            name: sorted(map(repr, connection.execute(text(f"SELECT * FROM {name}"))))
            for name in names
        }


def refused(answer: httpx.Response) -> bool:
    """Whether a page says in words that nothing was done, or leads a stranger to the door."""
    if answer.status_code >= 500 or not answer.headers["content-type"].startswith("text/html"):
        return False
    asks_for_a_key = answer.url.path == "/dashboard/sign-in"
    return answer.status_code >= 400 or asks_for_a_key or 'class="notice failed"' in answer.text


@pytest.fixture
def world(database: Engine, tmp_path: Path) -> World:
    """An item in each state for which a page has a form, and somebody to be paid."""
    made = World(database, tmp_path)
    for holder in ("", made.house.key_ids[Role.OPERATOR], "key_anna"):
        item_id = f"rev_{made.settle(unit(8, tier='review'), geo_mean='0.4100')}"
        with transaction(database) as connection:
            token = review.claim(connection, item_id, holder) if holder else 0
            if holder == "key_anna":
                verdict = {"verdict": Verdict.APPROVE, "signer": made.desk.signer}
                review.resolve(connection, item_id, holder, token, **verdict)
    return made


@pytest.fixture
def client(world: World) -> Iterator[TestClient[Litestar]]:
    with TestClient(world.app(), raise_server_exceptions=False) as opened:
        yield opened


def test_a_form_does_what_it_says_only_as_its_page_made_it_and_for_whom(
    world: World, client: TestClient[Litestar]
) -> None:
    """Wrong fields, tokens, bodies and roles are refused in words, and nothing changes; then the
    form is taken as it was shown. Every address that takes a form is among them.
    """
    visitors = [Visitor(client, getattr(world.house, role)) for role in ROLES]
    stranger = Visitor(client, None)
    forms = {stranger.door.action: (stranger, stranger.door)}
    for visitor in visitors:
        for form in visitor.forms.values():
            forms.setdefault(form.action, (visitor, form))
    addresses = {pattern for pattern in posted(client.app) if not any(map(pattern.match, forms))}
    assert addresses == set(), "no page that was found has a form for these"
    for action, (owner, form) in forms.items():
        others = [each for each in (*visitors, stranger) if action not in each.forms]
        before = stored(world.database)
        taken = [said for said, answer in attacks(form, owner, others) if not refused(answer)]
        assert taken == [], action
        assert stored(world.database) == before, action
        owner.back()
        key = {"key": world.house.owner} if form is stranger.door else {}
        answer = owner.send(form.action, [*(form.fields | key).items()])
        assert answer.status_code == 200, action
        assert 'class="notice failed"' not in answer.text, action


def posted(app: Litestar) -> set[re.Pattern[str]]:
    """The addresses that take a form, as patterns."""
    found = set()
    for route in app.routes:
        if "POST" in getattr(route, "methods", ()):
            found.add(re.compile(re.sub(r"\{[^}]+\}", "[^/]+", route.path) + "$"))
    return found


def attacks(
    form: Form, owner: Visitor, others: list[Visitor]
) -> Iterator[tuple[str, httpx.Response]]:
    """Every wrong way to send a form back, and what was answered."""
    for name in form.fields:
        for said, pairs in wrong_ways(form, name):
            owner.back()
            yield f"{name} {said}", owner.send(form.action, pairs)
        owner.back()
        rest = {key: value for key, value in form.fields.items() if key != name}
        file = {name: ("a.txt", form.fields[name].encode())}
        yield f"{name} as a file", owner.client.post(form.action, data=rest, files=file)
    good = urlencode(form.fields)
    for kind, body in (
        ("application/json", json.dumps(form.fields)),
        ("text/plain", good),
        ("multipart/form-data", good),
        ("multipart/form-data; boundary=x", "--x\r\nnonsense"),
        ("application/x-www-form-urlencoded", f"{good}&{good}"),
        ("application/x-www-form-urlencoded", "&".join([good, *("x=1",) * 5_000])),
    ):
        owner.back()
        headers = {"content-type": kind}
        yield f"as {kind}", owner.client.post(form.action, content=body, headers=headers)
    segments = form.action.split("/")
    if len(segments) > 4:  # of one record: of another, of none, of no possible one
        for wrong in ("rev_nobody", "%00", "x" * 500, "%EF%BC%91", "%FF"):
            owner.back()
            segments[3] = wrong
            yield f"of {wrong[:20]}", owner.send("/".join(segments), [*form.fields.items()])
    for other in others:
        other.back()
        theirs = form.fields | {CSRF: other.token}
        yield "by another role", other.send(form.action, [*theirs.items()])
        owner.back()
        yield "with another's token", owner.send(form.action, [*theirs.items()])
