"""Which board an engine's CUDA device is: never another's joules, in a process of its own."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from metering_nvml import build_nvml_stub, run_on_stub

A, B, C = "GPU-aaaa1111-0000", "GPU-aaaa2222-0000", "GPU-bbbb3333-0000"
TELLS = "energy=watts:40000:100 power=40000 load=50"
BOARDS = [f"{A} {TELLS}", f"{B} {TELLS}", f"{C} {TELLS}"]
DIVIDED = [f"{A} {TELLS} mig=MIG-1:2:7 mig=MIG-2:2:7", f"{B} {TELLS}"]
NAMED = """
import json, subprocess
from subprocess import PIPE
from metering.energy.opening import open_named
from metering.energy.settings import EnergySettings
from metering.errors import SourceUnavailable

found = []
for variables, device, device_uuid, named in json.loads({cases!r}):
    shell = ["/bin/sh", "-c", "echo; read _"]
    engine = subprocess.Popen(shell, env=variables, stdin=PIPE, stdout=PIPE)
    engine.stdout.readline()  # from here on its environment can be seen
    said = []
    for source in ("nvml", "nvml_power", "gpu_time"):
        try:
            settings = EnergySettings(nvml_device=named)
            opened = open_named(source, settings, engine.pid, device, device_uuid)
            said.append([each.provenance.device for each in opened])
        except SourceUnavailable as error:
            said.append(str(error))
    engine.communicate()
    found.append(said)
print(json.dumps(found))
"""
OPENED = """
import json, os
from metering_cases import INFO
from msgspec.structs import replace
from metering.energy import EnergySettings, open_meter_of

engine = replace(INFO, pid=os.getpid(), device="cuda:0", device_uuid={device_uuid!r})
said = open_meter_of(engine, EnergySettings()).provenance
print(json.dumps([said.energy_class, said.devices]))
"""
COMMANDS = """
import json, sys
from pathlib import Path
from click.testing import CliRunner
from api.meter_cli import meter
from metering.cli_context import CliContext
from metering.energy import traces

context = CliContext(Path({home!r}), None)
def run(*arguments):
    return CliRunner().invoke(meter, arguments, obj=context)
found = json.loads(run("sources", "--device", {device!r}, "--json").stdout)
trace = Path({home!r}) / "trace.jsonl"
done = run("record", str(trace), "--seconds", "0.1", "--device", {device!r})
recorded = traces.read(trace).provenance.devices if done.exit_code == 0 else str(done.exception)
print(json.dumps([[each.get("devices") for each in found[:3]], recorded]))
"""
IN_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


class Engine(NamedTuple):
    """A process with these variables, on such a device, and what the operator names."""

    variables: dict[str, str]
    device: str = "cuda:0"
    device_uuid: str | None = None
    named: str | None = None


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_nvml_stub(tmp_path_factory.mktemp("nvml"))


def boards_of(stub: Path, *engines: Engine, boards: list[str] = BOARDS) -> list[Any]:
    """What each is metered by, or why by nothing; the three sources of a board must agree."""
    found = run_on_stub(stub, boards, NAMED.format(cases=json.dumps(engines)))
    for counter, power, load in found:
        assert counter == power == load
    return [said[0] for said in found]


def shown(visible: str, device: str = "cuda:0", device_uuid: str | None = None) -> Engine:
    return Engine({**IN_ORDER, "CUDA_VISIBLE_DEVICES": visible}, device, device_uuid)


def test_a_cuda_device_is_counted_among_those_that_the_engine_may_see(stub: Path) -> None:
    found = [
        (shown("1"), B),
        (shown("2, 0"), C),
        (shown("2,0", "cuda:1"), A),
        (shown(C), C),
        (shown("GPU-bbbb", "cuda"), C),
        (shown("GPU-aaaa2,GPU-aaaa1", "cuda:1"), A),
    ]
    said = boards_of(stub, *(engine for engine, _ in found))
    assert said == [[uuid] for _, uuid in found]


def test_all_boards_are_seen_in_order_of_their_buses(stub: Path) -> None:
    lines = [f"{A} {TELLS} pci=9", f"{B} {TELLS} pci=4"]
    said = boards_of(stub, Engine(IN_ORDER), Engine(IN_ORDER, "cuda:1"), boards=lines)
    assert said == [[B], [A]]
    assert boards_of(stub, Engine({}), boards=lines[:1]) == [[A]], "of one board there is no order"


def test_what_shows_the_engine_no_board_meters_none(stub: Path) -> None:
    said = boards_of(
        stub,
        shown(""),
        shown("-1"),
        shown("7"),
        shown("1", "cuda:1"),
        shown("0,-1,1", "cuda:1"),
        shown("1,1"),
        shown("1,GPU-aaaa2", "cuda:1"),
        shown("GPU-aaaa"),
        shown("GPU-cccc"),
        shown("first"),
    )
    for each in said:
        assert "it cannot be told which board the engine uses" in each
        assert "DFLASH_ENERGY__NVML_DEVICE" in each


def test_a_number_in_an_order_that_is_cudas_own_is_not_guessed(stub: Path) -> None:
    variables = ({}, {"CUDA_VISIBLE_DEVICES": "1"}, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})
    for said in boards_of(stub, *map(Engine, variables)):
        assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in said


def test_what_the_engine_says_of_its_device_needs_no_variable(stub: Path) -> None:
    uuid = C.removeprefix("GPU-")
    known, seen, strange = boards_of(
        stub,
        Engine({}, device_uuid=uuid),
        shown("1", device_uuid=uuid),
        Engine({}, device_uuid="dddd"),
    )
    assert known == seen == [C]
    assert strange.endswith("Not Found")


def test_a_board_that_is_refused_does_not_matter_to_an_engine_that_says_its_own(stub: Path) -> None:
    boards = [f"{A} {TELLS} forbidden", f"{B} {TELLS}"]
    own, others, counted = boards_of(
        stub,
        Engine({}, device_uuid=B.removeprefix("GPU-")),
        Engine({}, device_uuid=A.removeprefix("GPU-")),
        shown("0"),
        boards=boards,
    )
    assert own == [B]
    assert "Insufficient Permissions" in others
    assert "Insufficient Permissions" in counted


def test_a_meter_of_an_engine_is_that_of_the_device_it_says(stub: Path) -> None:
    variables = {"PYTHONPATH": os.pathsep.join(sys.path)}
    for device_uuid, found in (
        (C.removeprefix("GPU-"), ["measured", [C]]),
        (None, ["unavailable", ["none"]]),
    ):
        code = OPENED.format(device_uuid=device_uuid)
        assert run_on_stub(stub, BOARDS, code, variables) == found


def test_a_board_that_is_named_must_be_the_engines(stub: Path) -> None:
    b, c = B.removeprefix("GPU-"), C.removeprefix("GPU-")
    one, group, other, untold, on_cpu, nothing = boards_of(
        stub,
        Engine({}, device_uuid=b, named="1"),
        Engine({}, device_uuid=c, named=f"0, {C}"),
        Engine({}, device_uuid=c, named="0,1"),
        Engine({}, named="2"),
        Engine({}, "cpu", named="2"),
        Engine({}, "cpu"),
    )
    assert (one, group) == ([B], [A, C])
    assert "which is not among 0,1" in other
    assert untold == on_cpu == [C], "where the engine says nothing, the operator does"
    assert "computes on no GPU" in nothing


def test_an_instance_is_found_by_its_name_and_never_by_a_number(stub: Path) -> None:
    by_name, *by_number, whole, other = boards_of(
        stub, shown("MIG-2"), Engine(IN_ORDER), shown("1"), shown(A), shown(B), boards=DIVIDED
    )
    assert by_name == ["MIG-2"]
    for each in (*by_number, whole):
        assert "split by MIG" in each, "CUDA does not count divided boards as NVML does"
    assert other == [B]


def test_an_engine_on_an_instance_may_say_the_uuid_of_either(stub: Path) -> None:
    a = A.removeprefix("GPU-")
    by_instance, by_board, named, unseen = boards_of(
        stub,
        Engine({}, device_uuid="2"),
        shown("MIG-2", device_uuid=a),
        Engine({}, device_uuid=a, named="MIG-1"),
        shown("", device_uuid=a),
        boards=DIVIDED,
    )
    assert by_instance == by_board == ["MIG-2"]
    assert named == ["MIG-1"]
    assert "names no board" in unseen
    lines = [f"{A} {TELLS} mig=MIG-1:2:7", f"{B} {TELLS} mig=MIG-2:2:7"]
    [said] = boards_of(stub, shown("MIG-2", device_uuid=a), boards=lines)
    assert "no instance of its board" in said


def test_two_instances_of_a_board_are_no_group_nor_is_one_board_twice(stub: Path) -> None:
    """Each shows the board's whole counter: what is others' would be counted twice."""
    groups = ("MIG-1,MIG-2", "MIG-1,MIG-1", f"1,{B}")
    engines = [Engine({}, named=group) for group in groups]
    for said in boards_of(stub, *engines, boards=DIVIDED):
        assert "cannot be added up" in said


def test_the_commands_ask_for_the_board_that_the_device_is(stub: Path, tmp_path: Path) -> None:
    code = COMMANDS.format(home=str(tmp_path), device="cuda:0")
    variables = {**IN_ORDER, "CUDA_VISIBLE_DEVICES": "1"}
    assert run_on_stub(stub, BOARDS, code, variables) == [[[B]] * 3, [B]]
