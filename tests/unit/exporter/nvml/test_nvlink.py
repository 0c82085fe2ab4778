"""NVLink: errors by generation and link, and which of the driver's counters give the bytes of links and of the card."""

from __future__ import annotations

import pytest
from poise.exporter import metrics as m
from poise.exporter.nvml.nvlink_errors import FROM_BLACKWELL, TO_HOPPER
from poise.exporter.snapshot import Gpu, Reason
from poise.testbed.nvml.codes import BlackwellLinkError, LinkError, ReturnCode

from tests.simulated_cards import Bench, bench

#: Type of the series → what the simulated link counts.
HOPPER = {
    "replay": LinkError.REPLAY,
    "recovery": LinkError.RECOVERY,
    "crc_flit": LinkError.CRC_FLIT,
    "crc_data": LinkError.CRC_DATA,
    "ecc": LinkError.ECC_DATA,
}
BLACKWELL = {
    "malformed": BlackwellLinkError.MALFORMED_PACKET,
    "buffer_overrun": BlackwellLinkError.BUFFER_OVERRUN,
    "receive": BlackwellLinkError.RECEIVE,
    "receive_remote": BlackwellLinkError.RECEIVE_REMOTE,
    "receive_general": BlackwellLinkError.RECEIVE_GENERAL,
    "local_link_integrity": BlackwellLinkError.LOCAL_LINK_INTEGRITY,
    "transmit_discard": BlackwellLinkError.TRANSMIT_DISCARD,
    "link_recovery_successful": BlackwellLinkError.RECOVERY_SUCCESSFUL,
    "link_recovery_failed": BlackwellLinkError.RECOVERY_FAILED,
    "effective": BlackwellLinkError.EFFECTIVE,
    "symbol": BlackwellLinkError.SYMBOL,
}
PAYLOAD = (138, 139)
BYTES = (202, 204)


def errors(gpu: Gpu) -> dict[tuple[str, ...], float]:
    return dict(gpu.readings.get(m.GPU_NVLINK_ERRORS, {}))


@pytest.mark.parametrize(
    ("profile", "kinds", "links"), [("h100x8", HOPPER, 18), ("driver535", HOPPER, 12), ("blackwell-x8", BLACKWELL, 18)]
)
def test_every_type_of_the_generation_moves_on_its_link_alone(
    profile: str, kinds: dict[str, LinkError | BlackwellLinkError], links: int
) -> None:
    assert set(kinds) in (set(TO_HOPPER), set(FROM_BLACKWELL))
    with bench(profile) as cards:
        before = errors(cards.read_all_tiers())
        assert before == {(str(link), kind): 0 for link in range(links) for kind in kinds}
        for number, (kind, error) in enumerate(kinds.items(), 1):
            cards.node.gpus[0].add_link_errors(links - 1, error, number)
            after = errors(cards.read_all_tiers())
            assert {key: value for key, value in after.items() if value != before[key]} == {(str(links - 1), kind): number}
            before = after


def test_a_driver_without_the_fields_is_asked_by_its_calls() -> None:
    with bench("h100x8") as cards:
        for gpu in cards.node.gpus:
            for field, _ in TO_HOPPER.values():
                if field is not None:
                    gpu.refuse_field(field, ReturnCode.NOT_SUPPORTED)
        cards.node.gpus[0].add_link_errors(3, LinkError.REPLAY, 5)
        assert errors(cards.read_all_tiers())["3", "replay"] == 5


def test_a_link_that_is_down_tells_no_errors_and_the_others_do() -> None:
    with bench("blackwell-x8") as cards:
        cards.node.gpus[0].set_link_up(4, False)
        found = errors(cards.read_all_tiers())
        assert {link for link, _ in found} == {str(link) for link in range(18)} - {"4"}


@pytest.mark.parametrize("profile", ["pcie-x2", "mig"])
def test_a_card_without_links_says_so(profile: str) -> None:
    with bench(profile) as cards:
        assert cards.read_all_tiers().absent[m.GPU_NVLINK_ERRORS] is Reason.NOT_SUPPORTED


def test_errors_are_read_rarely() -> None:
    with bench("h100x8") as cards:
        cards.read()
        asked = cards.node.calls("nvmlDeviceGetNvLinkErrorCounter", 0)
        for _ in range(9):
            cards.read(after=1.0)
        assert cards.node.calls("nvmlDeviceGetNvLinkErrorCounter", 0) == asked
        cards.read(after=1.0)
        assert cards.node.calls("nvmlDeviceGetNvLinkErrorCounter", 0) == 2 * asked


# ---------------------------------------------------------------------------------------------------------------------- bytes
def with_traffic(cards: Bench, *refused: int) -> Gpu:
    gpu = cards.node.gpus[0]
    for field in refused:
        gpu.refuse_field(field, ReturnCode.NOT_SUPPORTED)
    cards.prepare()
    cards.read()
    gpu.add_nvlink_bytes(2, tx=16 << 20, rx=32 << 20)
    return cards.read(after=1.0)


@pytest.mark.parametrize("profile", ["h100x8", "blackwell-x8"])
def test_payload_is_what_is_counted_where_the_driver_tells_it(profile: str) -> None:
    with bench(profile) as cards:
        gpu = with_traffic(cards)
        assert gpu.value(m.GPU_NVLINK_TX, "2") == gpu.value(m.GPU_NVLINK_TOTAL_TX) == 16 << 20
        assert gpu.value(m.GPU_NVLINK_RX, "2") == gpu.value(m.GPU_NVLINK_TOTAL_RX) == 32 << 20


def test_on_blackwell_bytes_stand_in_for_payload_that_the_driver_does_not_tell() -> None:
    """Fields 202 and 204 are bytes, not KiB; protocol is in them."""
    with bench("blackwell-x8") as cards:
        gpu = with_traffic(cards, *PAYLOAD)
        for per_link, total, payload in (
            (m.GPU_NVLINK_TX, m.GPU_NVLINK_TOTAL_TX, 16 << 20),
            (m.GPU_NVLINK_RX, m.GPU_NVLINK_TOTAL_RX, 32 << 20),
        ):
            value = gpu.value(total)
            assert value == gpu.value(per_link, "2")
            assert value is not None
            assert payload < value < 1.1 * payload


def test_before_blackwell_there_is_nothing_to_stand_in() -> None:
    with bench("h100x8") as cards:
        gpu = with_traffic(cards, *PAYLOAD)
        for metric in (m.GPU_NVLINK_TX, m.GPU_NVLINK_RX, m.GPU_NVLINK_TOTAL_TX, m.GPU_NVLINK_TOTAL_RX):
            assert gpu.absent[metric] is Reason.NOT_SUPPORTED


def test_the_counter_of_a_series_does_not_change_when_one_fails_in_passing() -> None:
    """Two counters count differently: a series that went from one to the other would jump, or fall."""
    with bench("blackwell-x8") as cards:
        before = with_traffic(cards)
        cards.node.gpus[0].refuse_field(PAYLOAD[0], ReturnCode.UNKNOWN)
        gpu = cards.read(after=1.0)
        assert gpu.value(m.GPU_NVLINK_TOTAL_TX) is None
        assert gpu.absent[m.GPU_NVLINK_TOTAL_TX] is Reason.ERROR
        cards.node.gpus[0].refuse_field(PAYLOAD[0], None)
        assert cards.read(after=1.0).value(m.GPU_NVLINK_TOTAL_TX) == before.value(m.GPU_NVLINK_TOTAL_TX)


def test_a_link_that_is_down_takes_nothing_from_the_drivers_own_sum() -> None:
    with bench("h100x8") as cards:
        before = with_traffic(cards).value(m.GPU_NVLINK_TOTAL_TX)
        cards.node.gpus[0].set_link_up(2, False)
        gpu = cards.read(after=1.0)
        assert gpu.value(m.GPU_NVLINK_TX, "2") is None
        assert gpu.value(m.GPU_NVLINK_TOTAL_TX) == before
