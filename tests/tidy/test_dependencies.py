"""The list of dependencies is the list of pins, each with its licence."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from itertools import chain
from pathlib import Path

from tidy_sources import text

ROW = re.compile(r"^\| ([\w.-]+) \| ([\w.]+) \| ([^|]+) \|", re.MULTILINE)
LISTED = {
    name: (version, licence.strip())
    for name, version, licence in ROW.findall(text(Path("docs/dependencies.md")))
    if name != "package"
}


# Nobody should have to wait for it to run the tests.
COMPILED_AT_INSTALL = {"llama-cpp-python"}


def is_installed(name: str) -> bool:
    return any(metadata.distributions(name=name))


def pins() -> dict[str, str]:
    project = tomllib.loads(text(Path("pyproject.toml")))["project"]
    lines = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    found = [re.fullmatch(r"([\w.-]+)(?:\[\w+\])?==([^\s;]+)(?:; .+)?", line) for line in lines]
    return {match[1]: match[2] for match in found if match}


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads(text(Path("pyproject.toml")))["project"]
    lines = {*project["dependencies"], *chain(*project["optional-dependencies"].values())}
    assert len(pins()) == len(lines)


def test_every_pin_is_listed_with_its_version() -> None:
    assert {name: version for name, (version, _) in LISTED.items()} == pins()


def test_a_licence_that_metadata_states_as_one_is_the_one_listed() -> None:
    wrong = {}
    for name, (_, licence) in LISTED.items():
        if name in COMPILED_AT_INSTALL and not is_installed(name):
            continue
        stated = metadata.metadata(name).get("License-Expression")
        if stated and " " not in stated and stated not in licence:
            wrong[name] = (stated, licence)
    assert wrong == {}
