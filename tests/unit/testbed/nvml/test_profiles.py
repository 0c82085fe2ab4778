"""The profiles that come with Poise, as pynvml shows them, and profiles that are wrong."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest
from poise.testbed.errors import TestbedError
from poise.testbed.nvml import profiles
from poise.testbed.nvml.codes import FabricState, ReturnCode
from poise.testbed.nvml.node import SimulatedNode

from tests.simulated import Simulation
from tests.unit.testbed.nvml.readings import ALL_LINKS, field_number

TEXT = (profiles.PROFILES / "h20x2.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", profiles.names())
def test_every_card_of_a_profile_is_called_simulated_and_is_itself(name: str, simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate(name)
    n = simulation.pynvml
    n.nvmlInit()
    handles = [n.nvmlDeviceGetHandleByIndex(index) for index in range(n.nvmlDeviceGetCount())]
    assert len(handles) == len(simulation.node.gpus) >= 2
    assert all(n.nvmlDeviceGetName(handle).startswith("Simulated NVIDIA ") for handle in handles)
    for read in (n.nvmlDeviceGetUUID, n.nvmlDeviceGetSerial, n.nvmlDeviceGetMinorNumber):
        assert len({read(handle) for handle in handles}) == len(handles)
    assert [n.nvmlDeviceGetPciInfo(handle).busId for handle in handles] == [gpu.pci_bus_id for gpu in simulation.node.gpus]
    for handle in handles:
        memory = n.nvmlDeviceGetMemoryInfo(handle, version=n.nvmlMemory_v2)
        assert memory.total == memory.reserved + memory.used + memory.free
        assert n.nvmlDeviceGetPowerUsage(handle) < n.nvmlDeviceGetEnforcedPowerLimit(handle)


def test_h20_links_go_to_switches(simulate: Callable[[str], Simulation]) -> None:
    n = simulate("h20x2").pynvml
    n.nvmlInit()
    first, second = (n.nvmlDeviceGetHandleByIndex(index) for index in range(2))
    assert field_number(n.nvmlDeviceGetFieldValues(first, [91])[0]) == 18
    assert field_number(n.nvmlDeviceGetFieldValues(first, [147])[0]) == 18
    assert {n.nvmlDeviceGetNvLinkRemoteDeviceType(first, link) for link in range(18)} == {2}
    assert len({n.nvmlDeviceGetNvLinkRemotePciInfo(first, link).busId for link in range(18)}) == 4
    assert n.nvmlDeviceGetNvLinkVersion(first, 0) == 6  # the enumeration's 4.0
    assert field_number(n.nvmlDeviceGetFieldValues(first, [(164, 17)])[0]) == 26562
    assert n.nvmlDeviceGetTopologyCommonAncestor(first, second) == n.NVML_TOPOLOGY_NODE
    assert n.nvmlDeviceGetP2PStatus(first, second, n.NVML_P2P_CAPS_INDEX_NVLINK) == n.NVML_P2P_STATUS_OK


def test_h100_has_two_sockets_of_four(simulate: Callable[[str], Simulation]) -> None:
    n = simulate("h100x8").pynvml
    n.nvmlInit()
    handles = [n.nvmlDeviceGetHandleByIndex(index) for index in range(8)]
    levels = [n.nvmlDeviceGetTopologyCommonAncestor(handles[0], other) for other in handles]
    assert levels == [0, 40, 40, 40, 50, 50, 50, 50]
    assert [n.nvmlDeviceGetNumaNodeId(handle) for handle in handles] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_pcie_card_has_no_link_and_no_memory_sensor(simulate: Callable[[str], Simulation]) -> None:
    n = simulate("pcie-x2").pynvml
    n.nvmlInit()
    first, second = (n.nvmlDeviceGetHandleByIndex(index) for index in range(2))
    fields = [91, (138, ALL_LINKS), (138, 0), 90, (164, 0), (165, 0), 82, 161, 52]
    assert {value.nvmlReturn for value in n.nvmlDeviceGetFieldValues(first, fields)} == {3}
    with pytest.raises(n.NVMLError_NotSupported):
        n.nvmlDeviceGetNvLinkState(first, 0)
    assert n.nvmlDeviceGetP2PStatus(first, second, 2) == n.NVML_P2P_STATUS_NOT_SUPPORTED
    assert n.nvmlDeviceGetCurrPcieLinkGeneration(first) == 1
    assert n.nvmlDeviceGetMaxPcieLinkGeneration(first) == 4


def test_bridged_cards_are_each_others_far_end(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("driver535")
    n, node = simulation.pynvml, simulation.node
    n.nvmlInit()
    for index, peer in ((0, 1), (1, 0)):
        handle = n.nvmlDeviceGetHandleByIndex(index)
        assert {n.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) for link in range(12)} == {0}
        assert {n.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId for link in range(12)} == {node.gpus[peer].pci_bus_id}
        assert field_number(n.nvmlDeviceGetFieldValues(handle, [147])[0]) == 0


def test_mig_devices_have_their_own_memory_and_uuid(simulate: Callable[[str], Simulation]) -> None:
    n = simulate("mig").pynvml
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    assert n.nvmlDeviceGetMigMode(handle) == [1, 1]
    assert n.nvmlDeviceGetMaxMigDeviceCount(handle) == 7
    devices = [n.nvmlDeviceGetMigDeviceHandleByIndex(handle, index) for index in range(3)]
    assert [n.nvmlDeviceGetGpuInstanceId(device) for device in devices] == [1, 5, 13]
    assert all(n.nvmlDeviceGetUUID(device).startswith("MIG-") for device in devices)
    memory = n.nvmlDeviceGetMemoryInfo(devices[1], version=n.nvmlMemory_v2)
    assert (memory.total, memory.used) == (21072183296, 0)
    with pytest.raises(n.NVMLError_NotFound):
        n.nvmlDeviceGetMigDeviceHandleByIndex(handle, 3)
    for refused in (handle, devices[0]):
        with pytest.raises(n.NVMLError_NotSupported):
            n.nvmlDeviceGetUtilizationRates(refused)


def test_a_node_made_twice_is_the_same_and_an_identity_makes_another(tmp_path: Path) -> None:
    uuids = []
    for name, identity in (("a", ""), ("b", ""), ("c", "node-2")):
        with SimulatedNode.create(tmp_path / name, "h20x2", identity) as node:
            uuids.append([gpu.uuid for gpu in node.gpus])
    assert uuids[0] == uuids[1] != uuids[2]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("Simulated NVIDIA H20-3e", "NVIDIA H20-3e"), "must start with 'Simulated '"),
        (('architecture = "hopper"', 'architecture = "hoper"'), "architecture 'hoper' is not one of pascal, volta"),
        (("fans = 0", "fans = 0\nblades = 3"), "product: unknown key 'blades'; known are name,"),
        (("fans = 0\n", ""), "product: missing fans"),
        (("fans = 0", 'fans = "none"'), "product: fans: 'none' is not of type int"),
        (("links = 18", "links = 40"), "40 links, allowed are 36"),
        (("max_mhz = [1980, 1980, 3201, 1545]", "max_mhz = [1980]"), "clocks need four values each"),
        (("functions_not_supported = []", 'functions_not_supported = ["nvmlGetFun"]'), "nvmlGetFun is no NVML function"),
        (("[driver]", "[driver"), "profile x: "),
    ],
)
def test_a_wrong_profile_says_where_and_what(change: tuple[str, str], complaint: str) -> None:
    assert change[0] in TEXT
    with pytest.raises(TestbedError, match="profile x: ") as raised:
        profiles.parse("x", TEXT.replace(*change, 1))
    assert complaint in str(raised.value)


def test_a_profile_can_refuse_functions_and_fields(tmp_path: Path, simulate: Callable[[str], Simulation]) -> None:
    path = tmp_path / "poor.toml"
    refusing = TEXT.replace("functions_not_supported = []", 'functions_not_supported = ["nvmlDeviceGetPowerUsage"]')
    path.write_text(refusing.replace("fields_not_supported = []", "fields_not_supported = [186]"), encoding="utf-8")
    n = simulate(str(path)).pynvml
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(n.NVMLError_NotSupported):
        n.nvmlDeviceGetPowerUsage(handle)
    assert [value.nvmlReturn for value in n.nvmlDeviceGetFieldValues(handle, [185, 186])] == [0, 3]


def test_an_unknown_profile_names_those_there_are() -> None:
    with pytest.raises(TestbedError, match=r"no profile 'h21'.*blackwell-x8, driver535, h100x8, h20x2, h20x8, mig, pcie-x2"):
        profiles.load("h21")


def test_a_profile_can_be_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TEXT, encoding="utf-8")
    assert profiles.load(str(path)).name == "mine"


def test_pci_address_in_its_extended_form(simulate: Callable[[str], Simulation]) -> None:
    n = simulate("h20x2").pynvml
    n.nvmlInit()
    info = n.nvmlPciInfoExt_v1_t()
    info.version = n.nvmlPciInfoExt_v1
    n.nvmlDeviceGetPciInfoExt(n.nvmlDeviceGetHandleByIndex(1), ctypes.byref(info))
    assert (info.bus, info.baseClass, info.subClass, info.busId) == (0x40, 3, 2, "00000000:40:00.0")


def test_nearest_cards_are_those_of_the_same_socket(simulate: Callable[[str], Simulation]) -> None:
    n = simulate("h100x8").pynvml
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(5)
    near = n.nvmlDeviceGetTopologyNearestGpus(handle, n.NVML_TOPOLOGY_NODE)
    assert [n.nvmlDeviceGetIndex(other) for other in near] == [4, 6, 7]


def test_fabric_info_has_the_same_content_in_every_version(simulate: Callable[[str], Simulation]) -> None:
    simulation = simulate("h20x2")
    n, node = simulation.pynvml, simulation.node
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    node.gpus[0].set_fabric(FabricState.IN_PROGRESS, status=ReturnCode.NOT_READY, clique=7, health=3)
    oldest, newest = n.c_nvmlGpuFabricInfo_t(), n.c_nvmlGpuFabricInfo_v3_t()
    n.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(oldest))
    n.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(newest))
    for info in (oldest, newest):
        assert (info.state, info.status, info.cliqueId) == (2, 27, 7)
    assert newest.healthSummary == 3
