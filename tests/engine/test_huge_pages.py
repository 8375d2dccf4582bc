"""A process that lasts keeps its objects in huge pages, unless somebody chose otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from engine import huge_pages

PLAIN = {
    name: value
    for name, value in os.environ.items()
    if name not in ("PYTHONMALLOC", "GLIBC_TUNABLES")
}
OFFERED = huge_pages.environment(PLAIN) != PLAIN


@pytest.fixture
def _offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "_are_offered", lambda: True)


@pytest.mark.usefixtures("_offered")
def test_what_was_chosen_stays_chosen() -> None:
    assert huge_pages.environment({"PYTHONMALLOC": "debug"}) == {"PYTHONMALLOC": "debug"}
    mine = "glibc.malloc.hugetlb=2:glibc.cpu.x86_shstk=off"
    found = huge_pages.environment({"GLIBC_TUNABLES": mine, "HOME": "/tmp"})
    assert found["HOME"] == "/tmp"
    assert found["PYTHONMALLOC"] == "malloc"
    told = dict(each.split("=") for each in found["GLIBC_TUNABLES"].split(":"))
    assert told["glibc.malloc.hugetlb"] == "2"
    assert told["glibc.cpu.x86_shstk"] == "off"
    assert set(told) == {*huge_pages.TUNABLES, "glibc.cpu.x86_shstk"}


@pytest.mark.usefixtures("_offered")
def test_a_process_that_has_them_asks_for_nothing_more() -> None:
    once = huge_pages.environment(PLAIN)
    assert huge_pages.environment(once) == once


def test_a_system_without_them_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "_KERNEL", huge_pages.Path("/nowhere"))
    assert huge_pages.environment(PLAIN) == PLAIN


def test_a_restart_keeps_the_command_line_and_happens_once() -> None:
    script = (
        "import os, sys\n"
        "from engine import huge_pages\n"
        "print('begun', flush=True)\n"
        "huge_pages.restart()\n"
        "print(os.environ.get('PYTHONMALLOC'), sys.argv[1:])\n"
    )
    command = [sys.executable, "-c", script, "one", "two words"]
    ran = subprocess.run(command, env=PLAIN, capture_output=True, text=True, check=True)
    last = f"{'malloc' if OFFERED else None} ['one', 'two words']"
    assert ran.stdout.splitlines() == ["begun"] * (1 + OFFERED) + [last]
