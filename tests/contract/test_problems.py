"""Every error that a package can raise has its place in the one table of problems."""

from __future__ import annotations

import importlib
import inspect

import pytest

from api import problems

PACKAGES = ("engine", "metering", "billing", "api")


def public_errors(package: str) -> list[type[Exception]]:
    """The exception classes that a package's `errors` module defines."""
    module = importlib.import_module(f"{package}.errors")
    return [
        value
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and issubclass(value, Exception)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_error_has_an_entry_of_its_own(package: str) -> None:
    found = public_errors(package)
    assert found
    missing = [error.__name__ for error in found if error not in problems.TABLE]
    assert missing == [], f"add these to api.problems.TABLE: {missing}"


def test_a_code_has_one_status_and_one_title() -> None:
    kinds = {*problems.TABLE.values(), *problems.FRAMEWORK.values()}
    assert len({kind.code for kind in kinds}) == len(kinds)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_one_root_of_its_errors(package: str) -> None:
    found = public_errors(package)
    roots = [error for error in found if error.__base__ is Exception]
    assert len(roots) == 1
    assert problems.TABLE[roots[0]] is problems.INTERNAL


def test_what_is_our_fault_shows_nothing_unless_it_was_written_to_be_shown() -> None:
    shown = {
        kind.code for kind in problems.kinds().values() if kind.status >= 500 and kind.shows_detail
    }
    assert shown == {"overloaded", "generation_failed", "not_settled", "audit_busy"}
