"""Habits that a reader relies on, held by a test: names, sizes, and what stands where."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import pytest
from tidy_sources import PACKAGES, ROOT, modules, text, tracked

BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "manager", "core", "misc"}
LINES_MAX = 400
# Why a file may be longer: only what is tabular or generated.
LONGER = {
    "migrations/versions/first_tables.py": "every column of every table, once",
}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|raise NotImplementedError)\b")
# Spelled apart, so that this file does not find itself.
FOREIGN = [
    *("/" + "work/", "/" + "root/", "/" + "home/"),
    *("py" + "pi.org", "python" + "hosted.org", "download.py" + "torch.org", "registry.np" + "mjs"),
]
DISTRIBUTIONS_BY_IMPORT = {
    "gguf": "gguf",
    "jinja2": "jinja2",
    "markupsafe": "jinja2",  # whose escaping it is
    "prometheus_client": "prometheus-client",
    "psycopg": "psycopg",
    "pydantic": "pydantic-settings",  # which is built on it and pins it
    "pydantic_settings": "pydantic-settings",
    "pynvml": "nvidia-ml-py",
    "triton": "torch",  # whose CUDA build brings it
    "tree_sitter": "tree-sitter",
    **{
        f"tree_sitter_{name}": f"tree-sitter-{name}"
        for name in ("bash", "javascript", "python", "sql", "typescript")
    },
    "uuid_utils": "uuid-utils",
    "yaml": "pyyaml",
}


def test_a_module_is_named_for_what_it_holds() -> None:
    named = [str(path) for path in modules() if BANNED_NAMES & {*path.parent.parts, path.stem}]
    assert named == [], "name the noun of the domain instead"


def test_no_file_holds_two_nouns() -> None:
    lengths = {str(path): len(text(path).splitlines()) for path in modules(*PACKAGES, "migrations")}
    long = {path: lines for path, lines in lengths.items() if lines > LINES_MAX}
    assert set(long) <= set(LONGER), f"over {LINES_MAX} lines: split, or say why here: {long}"
    assert set(LONGER) <= set(long), "a reason outlived its file"


def test_the_product_is_finished_where_it_stands() -> None:
    found = [str(path) for path in modules() if UNFINISHED.search(text(path))]
    assert found == []


@pytest.mark.parametrize("foreign", FOREIGN)
def test_no_file_names_a_machine_or_a_registry(foreign: str) -> None:
    assert [str(path) for path in tracked() if foreign in text(path)] == []


def test_tests_are_no_packages() -> None:
    found = [str(path) for path in modules("tests") if path.name == "__init__.py"]
    assert found == [], "tests/engine/__init__.py would shadow the real engine"


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path)
        for path in modules(*PACKAGES, "migrations")
        if text(path).strip() and ast.get_docstring(ast.parse(text(path))) is None
    ]
    assert silent == []


def test_only_the_settings_read_the_environment_and_what_is_passed_on_to_a_process() -> None:
    readers = [
        str(path)
        for path in modules()
        if re.search(r"\bos\.(environ|getenv)\b|from os import .*\b(environ|getenv)\b", text(path))
    ]
    assert readers == ["api/settings.py", "engine/huge_pages.py"]


def test_tables_stand_in_the_tables_modules() -> None:
    defining = {str(path) for path in modules() if re.search(r"(?m)^\w+ = Table\($", text(path))}
    assert {"api/tables.py", "billing/tables.py", "metering/tables.py"} <= defining
    assert [path for path in defining if not path.endswith("tables.py")] == []


def test_every_table_has_one_owner() -> None:
    owners: dict[str, list[str]] = {}
    for package in ("metering", "billing", "api"):
        for name in importlib.import_module(f"{package}.tables").metadata.tables:
            owners.setdefault(name, []).append(package)
    assert {name: who for name, who in owners.items() if len(who) > 1} == {}


def test_every_triton_kernel_has_a_plain_twin() -> None:
    kernels = [path for path in modules("engine") if "import triton" in text(path)]
    missing = [
        str(path)
        for path in kernels
        if path.with_name(f"{path.stem}_reference.py") not in set(tracked())
    ]
    assert missing == []


def test_no_other_distribution_claims_our_packages() -> None:
    claims = importlib.metadata.packages_distributions()
    strangers = {name: set(claims.get(name, ())) - {"dflash-gateway"} for name in PACKAGES}
    assert all(not who for who in strangers.values()), strangers


@pytest.mark.parametrize("name", PACKAGES)
def test_our_packages_are_imported_from_this_tree(name: str) -> None:
    origin = importlib.import_module(name).__file__
    assert origin is not None, f"{name} became a namespace package"
    assert Path(origin).is_relative_to(ROOT)


def test_every_import_is_a_declared_dependency() -> None:
    project = tomllib.loads(text(Path("pyproject.toml")))["project"]
    declared = {re.split(r"[\[=<>~!]", line)[0].lower() for line in project["dependencies"]}
    undeclared: dict[str, set[str]] = {}
    for path in modules(*PACKAGES, "migrations"):
        for name in imported_names(ast.parse(text(path))):
            if name in PACKAGES or name in sys.stdlib_module_names:
                continue
            if DISTRIBUTIONS_BY_IMPORT.get(name, name).lower() not in declared:
                undeclared.setdefault(name, set()).add(str(path))
    assert undeclared == {}


def imported_names(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.partition(".")[0])
    return names
