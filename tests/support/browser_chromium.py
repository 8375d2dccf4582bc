"""Headless Chromium for tests of pages. A missing browser is an error, never a skip."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

FLAGS = (
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One browser for all tests; each test opens its own context."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
    if path is None:
        pytest.fail("no Chromium on this machine: install it (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


@dataclass
class Tab:
    """A page that remembers what went wrong in it: script errors, refused or foreign loads."""

    page: Page
    context: BrowserContext
    problems: list[str] = field(default_factory=list)

    def sign_in(self, base_url: str, key: str) -> None:
        """Sign in through the form, as a person does."""
        self.page.goto(f"{base_url}/dashboard/sign-in")
        self.page.get_by_label("API key").fill(key)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_load_state("load")


@contextmanager
def open_tab(chromium: Browser, **options: object) -> Iterator[Tab]:
    """A tab of its own: no cookies, nothing cached. Fails at the end if the page had problems."""
    context = chromium.new_context(**options)  # type: ignore[arg-type]
    page = context.new_page()
    tab = Tab(page, context)
    page.on("pageerror", lambda error: tab.problems.append(str(error)))
    page.on(
        "console",
        lambda message: tab.problems.append(message.text) if message.type == "error" else None,
    )
    page.on(
        "request",
        lambda request: (
            tab.problems.append(f"left the machine: {request.url}")
            if not request.url.startswith(("http://127.0.0.1:", "data:"))
            else None
        ),
    )
    yield tab
    context.close()
    assert tab.problems == []
