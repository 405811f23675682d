import itertools
import json
from pathlib import Path

import pynvml
import pytest

from rose.runtime.coserving.meter import meter_gpu
from rose.runtime.coserving.meter.meter_gpu import GpuInstrument, UnreadableError, clock_reasons
from tests.runtime.coserving.meter.nvml_library import Card, installed

ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    times_ns = itertools.count(1_000_000_000, 250_000_000)
    monkeypatch.setattr(meter_gpu, "monotonic_ns", lambda: next(times_ns))


def test_energy_is_the_difference_of_the_cards_counter() -> None:
    card = Card("a", energy_mj=5_000_000, busy_percent=73, memory_used_bytes=9 << 30, clock_bits=0x4 | 0x20)
    with installed(card):
        gpu = GpuInstrument(0)
        opened_ns = gpu.open()
        card.energy_mj = 5_000_040
        first = gpu.read()
        card.energy_mj = 5_000_090
        second = gpu.read()
    assert (first.energy_mj, second.energy_mj) == (40, 50)
    assert (first.t0_ns, second.t0_ns) == (opened_ns, first.t1_ns), "nothing between two readings"
    assert first.source == "nvml-energy"
    assert first.reason is None


@pytest.mark.parametrize("processes", [0, 2, 3, None])
def test_the_processes_that_compute_on_a_card_are_counted(processes: int | None) -> None:
    with installed(Card("a", processes=processes)):
        gpu = GpuInstrument(0)
        gpu.open()
        gpu.read()
    assert gpu.processes == processes


def test_the_readings_of_a_real_card_come_out_as_they_were_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    report = json.loads((ROOT / "benchmarks" / "results" / "gpu-h100-2026-11-23.json").read_text())
    recorded = report["detail"]["stages"]["power"]["detail"]["events"]
    assert {event["clock_reasons"] for event in recorded} >= {"", "power cap"}
    bits = {"": 0, "power cap": pynvml.nvmlClocksEventReasonSwPowerCap}
    now_ns = recorded[0]["t0_ns"]
    monkeypatch.setattr(meter_gpu, "monotonic_ns", lambda: now_ns)
    card = Card("a", energy_mj=0)
    with installed(card):
        gpu = GpuInstrument(0)
        assert gpu.open() == now_ns
        for event in recorded:
            now_ns, card.energy_mj = event["t1_ns"], (card.energy_mj or 0) + event["energy_mj"]
            card.busy_percent, card.clock_bits = round(event["busy_share"] * 100), bits[event["clock_reasons"]]
            card.memory_used_bytes, card.sm_clock_mhz = event["memory_used_bytes"], event["sm_clock_mhz"]
            reading = gpu.read()
            assert {name: getattr(reading, name) for name in event} == event


@pytest.mark.parametrize("counter_mj", [3, 10**9])
def test_a_counter_that_was_reset_or_leapt_is_not_believed(counter_mj: int) -> None:
    card = Card("a", energy_mj=1000)
    with installed(card):
        gpu = GpuInstrument(0)
        gpu.open()
        card.energy_mj = counter_mj
        reading = gpu.read()
        assert (reading.power_mw, reading.source, reading.energy_mj) == (None, "not measured", None)
        assert f"the energy counter went from 1000 to {counter_mj} mJ" in str(reading.reason)
        card.energy_mj = counter_mj + 1
        assert gpu.read().energy_mj == 1, "believed again from there on"


def test_a_card_without_a_counter_is_not_measured_and_all_else_of_it_is() -> None:
    card = Card("a", energy_mj=None, busy_percent=73, memory_used_bytes=9 << 30, clock_bits=0x4 | 0x20)
    with installed(card):
        gpu = GpuInstrument(0)
        gpu.open()
        reading = gpu.read()
    assert (reading.power_mw, reading.source) == (None, "not measured")
    assert reading.reason == "the GPU and its driver have no energy counter"
    assert (reading.busy_share, reading.memory_used_bytes, reading.sm_clock_mhz) == (0.73, 9 << 30, 1980)
    assert reading.clock_reasons == "power cap; thermal, by software"


def test_clock_reasons_are_named_and_unknown_ones_numbered() -> None:
    assert clock_reasons(0) == ""
    assert clock_reasons(0x48 | 1 << 40) == "hardware slowdown; thermal, by hardware; 0x10000000000"


def test_a_card_is_found_again_by_its_uuid_though_indices_moved() -> None:
    cards = [Card("a", energy_mj=0), Card("b", energy_mj=100)]
    with installed(*cards) as library:
        gpu = GpuInstrument(1)
        gpu.open()
        cards[1].error = pynvml.NVML_ERROR_GPU_IS_LOST
        with pytest.raises(UnreadableError, match="GPU 1: GPU is lost"):
            gpu.read()
        gpu.close()
        with pytest.raises(UnreadableError, match="the driver lists no GPU-b"):
            gpu.open()
        cards[1].error = None
        library.cards = [cards[1], cards[0]]
        gpu.open()
        cards[1].energy_mj = 130
        assert gpu.read().energy_mj == 30
        gpu.close()
        assert library.references == 0


@pytest.mark.parametrize(
    ("visible", "gpu", "energy_mj"), [("2,0", 0, 3), ("2,0", 1, 1), ("GPU-bb", 0, 2), ("GPU-bbb-2, GPU-c", 1, 3)]
)
def test_cuda_visible_devices_chooses_the_card(visible: str, gpu: int, energy_mj: int) -> None:
    cards = [Card("a-1"), Card("bbb-2"), Card("c-3")]
    with installed(*cards):
        instrument = GpuInstrument(gpu, visible)
        instrument.open()
        for number, card in enumerate(cards, 1):
            card.energy_mj = number
        assert instrument.read().energy_mj == energy_mj


def test_what_cannot_be_found_is_said() -> None:
    with installed(Card("a")) as library:
        with pytest.raises(UnreadableError, match="CUDA_VISIBLE_DEVICES has 1 GPUs: change the device's `gpu`"):
            GpuInstrument(1, "0").open()
        with pytest.raises(UnreadableError, match="GPU 3: Invalid Argument"):
            GpuInstrument(3).open()
        assert library.references == 0
    with (
        installed(Card("a"), init=pynvml.NVML_ERROR_DRIVER_NOT_LOADED),
        pytest.raises(UnreadableError, match="NVML: Driver Not Loaded"),
    ):
        GpuInstrument(0).open()


def test_mig_instances_that_share_a_card_are_not_measured() -> None:
    card = Card("a", energy_mj=0, mig=[7, 8])
    with installed(card, Card("b")):
        gpu = GpuInstrument(0, "MIG-a-2")
        gpu.open()
        card.energy_mj = 9
        reading = gpu.read()
        assert (reading.power_mw, reading.energy_mj, reading.source) == (None, None, "not measured")
        assert (reading.memory_used_bytes, reading.mig_instances) == (8, 2)
        assert reading.reason == "the card has one meter, and 2 MIG instances share it"
        card.mig = [7]
        with pytest.raises(UnreadableError, match="GPU 0: Invalid Argument"):
            gpu.read()
        gpu.close()
        with pytest.raises(UnreadableError, match="the driver lists no MIG-a-2"):
            gpu.open()


def test_a_survey_says_how_each_gpu_will_be_read() -> None:
    cards = [Card("a"), Card("b", energy_mj=None), Card("d", mig=[1, 2])]
    with installed(*cards):
        assert meter_gpu.survey()[0] == [
            ("a card", "by its energy counter"),
            ("a card", "not measured: the GPU and its driver have no energy counter"),
            ("a card", "not measured: MIG instances share its meter"),
        ]
