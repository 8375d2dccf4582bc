"""Use the built wheel as a stranger would: installed, from an empty folder, without the sources.

Run by `make wheel-smoke` with the development environment's Python. The wheel goes into a fresh
virtual environment that borrows only the third-party packages of the development one, so that
torch is not installed twice; our own packages are found in the wheel or not at all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECEIPT = ROOT / "tests" / "wheel" / "receipt.json"
KEYS = ROOT / "tests" / "wheel" / "receipt_keys.json"
PACKAGES = ("engine", "metering", "billing", "dashboards", "api", "dflash")

IMPORT_EVERYTHING = f"""
import importlib, pkgutil
count = 0
for root in {PACKAGES!r}:
    package = importlib.import_module(root)
    assert {str(ROOT)!r} not in package.__file__, package.__file__
    for module in pkgutil.walk_packages(package.__path__, root + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
            count += 1
print(count, "modules imported")
"""

FRONT_DOOR = """
from dflash import DFlashLogitsProcessor, DFlashModel
assert callable(DFlashModel.from_pretrained)
"""


def main() -> None:
    """Build, install, use; exit non-zero at the first thing that fails."""
    with tempfile.TemporaryDirectory(prefix="dflash-wheel-") as temporary:
        folder = Path(temporary)
        wheel = build(folder / "dist")
        python = install(folder / "venv", wheel)
        empty = folder / "empty"
        empty.mkdir()
        use(python, empty)
    print("the wheel works from an empty folder")


def build(target: Path) -> Path:
    """Build the wheel with the pinned backend that is already installed."""
    step("building the wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", target, ROOT],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (wheel,) = target.glob("*.whl")
    return wheel


def install(target: Path, wheel: Path) -> Path:
    """Install the wheel alone; return the environment's Python."""
    step(f"installing {wheel.name}")
    venv.create(target, with_pip=True)
    python = target / "bin" / "python"
    call(python, "-m", "pip", "install", "--quiet", "--no-deps", str(wheel))
    site = call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    # A .pth entry is searched, but the .pth files within it are not read: our editable install
    # stays out of reach.
    (Path(site) / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def use(python: Path, empty: Path) -> None:
    """What a user does first, each in the empty folder."""
    dflash = str(python.with_name("dflash"))
    version = call(dflash, "--version", cwd=empty)
    assert version.startswith("dflash "), version
    call(dflash, "--help", cwd=empty)
    call(dflash, "--list-models", cwd=empty)
    call(str(python.with_name("dfm_convert")), "--help", cwd=empty)
    call(str(python.with_name("dflash-bench")), "--help", cwd=empty)
    assert not any(empty.iterdir()), "looking around must leave nothing behind"

    call(dflash, "migrate", cwd=empty)
    assert (empty / "var" / "gateway.db").is_file()
    findings = json.loads(call(dflash, "doctor", "--json", cwd=empty))
    failed = [finding for finding in findings if finding["level"] == "fail"]
    assert not failed, failed
    call(dflash, "reconcile", cwd=empty)

    call(dflash, "receipt", "verify", str(RECEIPT), "--keys", str(KEYS), cwd=empty)
    forged = json.loads(RECEIPT.read_text())
    forged["receipt"]["total"] = "0"
    (empty / "forged.json").write_text(json.dumps(forged))
    refuse(dflash, "receipt", "verify", "forged.json", "--keys", str(KEYS), cwd=empty)

    call(python, "-c", IMPORT_EVERYTHING, cwd=empty)
    call(python, "-c", FRONT_DOOR, cwd=empty)


def call(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command that must succeed; return its stdout."""
    done = run(command, cwd)
    if done.returncode != 0:
        sys.exit(f"{show(command)} exited with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def refuse(*command: str | Path, cwd: Path) -> None:
    """Run a command that must fail with a message and without a traceback."""
    done = run(command, cwd)
    if done.returncode == 0 or "Traceback" in done.stderr or not done.stderr.strip():
        sys.exit(f"{show(command)} should have been refused\n{done.stdout}{done.stderr}")


def run(command: Sequence[str | Path], cwd: Path | None) -> subprocess.CompletedProcess[str]:
    """Run a command without our settings or this Python's search path in its environment."""
    step(show(command))
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DFLASH_", "PYTHON", "VIRTUAL_ENV"))
    }
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def show(command: Sequence[str | Path]) -> str:
    """A command as one short line."""
    words = (str(word).strip().splitlines()[0] for word in command)
    return " ".join(word.rpartition("/")[2] for word in words)


def step(text: str) -> None:
    """Say what happens next."""
    print(f"== {text}", flush=True)


if __name__ == "__main__":
    main()
