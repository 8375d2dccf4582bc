"""The example receipts of docs/receipts, and how they are made anew.

    python tests/support/example_receipts.py var/models/smollm2-135m-instruct.dfm

Each is the whole answer of a gateway and engine process to one request: the one metered by the
NVML stub's counters, calibrated by them before, the other by the estimate from CPU time.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from gateway_process import GatewayHome, make_tenant
from metering_nvml import build_nvml_stub

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "receipts"
KEYS = FOLDER / "keys.json"
BOARDS = """\
GPU-11111111-2222-3333-4444-555555555555 energy=watts:300000:20 limit=400000
GPU-66666666-7777-8888-9999-000000000000 energy=watts:200000:30 limit=400000
"""
REQUEST = {
    "messages": [{"role": "user", "content": "Write a Python function that adds two numbers."}],
    "max_tokens": 96,
    "seed": 7,
}


def example(name: str) -> Any:
    """One of the committed answers."""
    return json.loads((FOLDER / f"{name}.json").read_text())


def form(envelope: dict[str, Any]) -> dict[str, frozenset[str]]:
    """Which fields a receipt has: at its top, in its parts, and in its lines."""
    receipt = envelope["receipt"]
    parts = ("confidence", "drafting", "energy", "engine", "output", "tariff", "units")
    fields = {name: frozenset(receipt[name]) for name in parts}
    lines = frozenset(name for line in receipt["lines"] for name in line)
    return fields | {"envelope": frozenset(envelope), "": frozenset(receipt), "lines": lines}


def nvml_stub_settings(folder: Path) -> dict[str, str]:
    """What a gateway must be told to be metered by both boards of the stub, built in `folder`."""
    build_nvml_stub(folder)
    (folder / "scenario.txt").write_text(BOARDS)
    return {
        "LD_LIBRARY_PATH": str(folder),
        "NVML_STUB_SCENARIO": str(folder / "scenario.txt"),
        "DFLASH_ENERGY__SOURCE": "nvml",
        "DFLASH_ENERGY__NVML_DEVICE": "0,1",
    }


def main(model: Path) -> None:
    """Serve twice under one signing key, and write down what is answered."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        home = GatewayHome.create(Path(temporary) / "home", model.resolve())
        home.settings = {"DFLASH_ENERGY__SOURCE": "cpu_time"}
        _answer(home, "estimated", tariff="composite")
        (Path(temporary) / "nvml").mkdir()
        home.settings = nvml_stub_settings(Path(temporary) / "nvml")
        home.dflash("calibrate", "energy", "--seconds", "1")
        _answer(home, "measured", tariff="energy")


def _answer(home: GatewayHome, name: str, tariff: str) -> None:
    tenant = make_tenant(home, tariff=tariff)
    with home.running() as gateway, gateway.client(tenant.key) as client:
        answer = client.post("/generate", json=REQUEST).raise_for_status().json()
        keys = client.get("/receipt-keys").raise_for_status().json()
    for path, document in ((FOLDER / f"{name}.json", answer), (KEYS, keys)):
        path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
