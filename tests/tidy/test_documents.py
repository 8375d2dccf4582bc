"""Whatever the README and the docs name exists: paths, links, commands, options, make targets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click
import pytest
from _pytest.mark import ParameterSet
from tidy_sources import ROOT, text, tracked

from dflash.cli import cli, load

DOCUMENTS = [path for path in tracked() if path.suffix == ".md"]
PROGRAMS = ("dflash", "dfm_convert", "dflash-bench", "make")
ALIASES = {"dfm_convert": "convert", "dflash-bench": "bench"}
LINK = re.compile(r"\]\(([^)#\s]+)")
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# A path has a known root, or an extension and a slash; a route of the API starts with a slash.
PATH = re.compile(r"[\w.-]+(/[\w.-]+)+/?|[\w-]+\.(py|md|toml|yaml)|[\w-]+/")
METHOD = re.compile(r"[\w-]+/\d+")  # a name and its version, as of a way to attribute energy
MADE_AT_RUN_TIME = ("var/", "models/", "keys/")  # under the home


def inline(document: Path) -> list[str]:
    return INLINE.findall(FENCE.sub("", text(document)))


def commands(document: Path) -> Iterator[str]:
    """Command lines: in inline code, and in shell fences, continuation lines joined."""
    for code in inline(document):
        if code.partition(" ")[0] in PROGRAMS and " " in code:
            yield code
    for language, body in FENCE.findall(text(document)):
        if language in {"sh", "bash", "console"}:
            for line in body.replace("\\\n", " ").splitlines():
                words = line.removeprefix("$ ").split()
                while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
                    words.pop(0)
                if words and words[0] in PROGRAMS:
                    yield " ".join(words)


def every(finder: Callable[[Path], Iterable[str]]) -> list[ParameterSet]:
    return [
        pytest.param(document, item, id=f"{document}: {item}")
        for document in DOCUMENTS
        for item in dict.fromkeys(finder(document))
    ]


def paths(document: Path) -> list[str]:
    found = [code for code in inline(document) if PATH.fullmatch(code)]
    return [code for code in found if not METHOD.fullmatch(code)]


def links(document: Path) -> list[str]:
    return [link for link in LINK.findall(text(document)) if "://" not in link]


@pytest.mark.parametrize(("document", "link"), every(links))
def test_every_link_leads_somewhere(document: Path, link: str) -> None:
    assert (ROOT / document.parent / link).exists()


@pytest.mark.parametrize(("document", "path"), every(paths))
def test_every_path_exists(document: Path, path: str) -> None:
    if path.startswith(MADE_AT_RUN_TIME) or path.count("/") == path.count(".") == 0:
        return
    places = (ROOT, ROOT / document.parent)
    assert any((place / path).exists() for place in places)


@pytest.mark.parametrize(("document", "command"), every(commands))
def test_every_command_exists_with_its_options(document: Path, command: str) -> None:
    program, *words = shlex.split(command.partition(" # ")[0].partition(" > ")[0])
    if program == "make":
        targets = re.findall(r"(?m)^([\w-]+):", text(Path("Makefile")))
        assert {word for word in words if "=" not in word} <= set(targets)
        return
    found: click.Command = load(ALIASES[program]) if program in ALIASES else cli
    context = click.Context(found)
    for word in words:
        if word.startswith("-"):
            names = {name for option in found.get_params(context) for name in declared(option)}
            assert word.partition("=")[0] in names, f"{found.name} has no {word}"
        elif isinstance(found, click.Group):
            if found is cli and word not in cli.list_commands(context):
                continue  # the value of an option
            child = found.get_command(context, word)
            assert child is not None, f"{found.name} has no command {word}"
            found, context = child, click.Context(child, parent=context)


def declared(parameter: click.Parameter) -> list[str]:
    return [*parameter.opts, *parameter.secondary_opts]


def test_the_index_of_the_docs_names_every_page() -> None:
    pages = {
        path.relative_to("docs").as_posix()
        for path in DOCUMENTS
        if path.parts[0] == "docs" and path != Path("docs/README.md")
    }
    assert pages == set(links(Path("docs/README.md"))) - {"../README.md"}
