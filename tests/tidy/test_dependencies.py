"""The list of dependencies is the list of pins, each with its licence."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

from tidy_sources import text

ROW = re.compile(r"^\| ([\w.-]+) \| ([\w.]+) \| ([^|]+) \|", re.MULTILINE)
LISTED = {
    name: (version, licence.strip())
    for name, version, licence in ROW.findall(text(Path("docs/dependencies.md")))
    if name != "package"
}


def pins() -> dict[str, str]:
    project = tomllib.loads(text(Path("pyproject.toml")))["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    found = [re.fullmatch(r"([\w.-]+)(?:\[\w+\])?==([^\s;]+)(?:; .+)?", line) for line in lines]
    return {match[1]: match[2] for match in found if match}


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads(text(Path("pyproject.toml")))["project"]
    count = len(project["dependencies"]) + len(project["optional-dependencies"]["dev"])
    assert len(pins()) == count


def test_every_pin_is_listed_with_its_version() -> None:
    assert {name: version for name, (version, _) in LISTED.items()} == pins()


def test_a_licence_that_metadata_states_as_one_is_the_one_listed() -> None:
    wrong = {}
    for name, (_, licence) in LISTED.items():
        stated = metadata.metadata(name).get("License-Expression")
        if stated and " " not in stated and stated not in licence:
            wrong[name] = (stated, licence)
    assert wrong == {}
