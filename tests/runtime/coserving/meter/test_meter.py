import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pynvml
import pytest

from rose.clock import Anchor, monotonic_ns
from rose.config import DeviceConfig
from rose.events import NOT_MEASURED, Power
from rose.runtime.coserving.meter import meter as meter_module
from rose.runtime.coserving.meter.meter import CoresInstrument, DeviceMeter
from rose.runtime.coserving.meter.meter_gpu import UnreadableError
from tests.runtime.agent.agents_in_turn import until
from tests.runtime.coserving.meter.nvml_library import Card, installed

CORE = max(os.sched_getaffinity(0))
PERIOD_S = 0.02
ANCHOR = Anchor.take()


class Recorded(list[Power]):
    def __call__(self, event: Any, *, durable: bool | None = None) -> None:
        self.append(event)


def device(device_id: str = "d", gpu: int | None = None, **fields: Any) -> DeviceConfig:
    cores = [] if gpu is not None else [CORE]
    usual: dict[str, Any] = {"pool": "serving", "device_class": "cpu-core", "kv_bytes": 1 << 20}
    return DeviceConfig(id=device_id, gpu=gpu, cores=cores, **{**usual, **fields})


def assert_follow_one_another(readings: Sequence[Power]) -> None:
    assert readings
    for before, after in pairwise(readings):
        assert before.t1_ns == after.t0_ns
    assert all(reading.t0_ns <= reading.t1_ns for reading in readings)


def test_readings_follow_one_another_and_their_energy_is_the_counters() -> None:
    record, card = Recorded(), Card("a", energy_mj=70)
    with installed(card) as library:
        meter = DeviceMeter(device(gpu=0), record, ANCHOR, PERIOD_S)
        meter.start()
        until(lambda: len(record) >= 2)
        card.energy_mj = 75
        until(lambda: sum(reading.energy_mj or 0 for reading in record) == 5)
        meter.stop()
        meter.stop()
        assert library.references == 0
    assert_follow_one_another(record)
    assert {(reading.source, reading.device_id) for reading in record} == {("nvml-energy", "d")}
    assert all(abs(reading.t1_ns // 1000 - reading.at_us) <= 1 for reading in record)


def test_a_lost_card_is_said_once_and_read_again_when_it_is_back() -> None:
    record, card = Recorded(), Card("a", energy_mj=1000)
    with installed(card) as library:
        meter = DeviceMeter(device(gpu=0), record, ANCHOR, PERIOD_S)
        meter.start()
        until(lambda: record)
        card.error = pynvml.NVML_ERROR_GPU_IS_LOST
        until(lambda: record[-1].source == NOT_MEASURED)
        calls = library.calls
        # It is tried several times over, and nothing more is said of it.
        until(lambda: library.calls > calls + 6)
        gone = [reading for reading in record if reading.source == NOT_MEASURED]
        assert [reading.reason for reading in gone] == ["GPU 0: GPU is lost"]
        # The driver was loaded anew with it: its counter begins at 0.
        card.energy_mj, card.error = 3, None
        until(lambda: record[-1].source == "nvml-energy")
        meter.stop()
        assert library.references == 0
    assert_follow_one_another(record)
    back = [reading for reading in record if reading.source == NOT_MEASURED][1]
    assert "GPU is lost" not in str(record[-1].reason)
    assert str(back.reason).endswith("; it can be read again")
    assert sum(reading.energy_mj or 0 for reading in record) == 0, "what it drew while lost is not made up"


class Scripted:
    def __init__(self, *script: Exception | None) -> None:
        self._script = list(script)
        self._t0_ns = 0
        self.closed = 0
        self.hang = threading.Event()
        self.hang.set()

    def open(self) -> int:
        self._t0_ns = monotonic_ns()
        return self._t0_ns

    def read(self) -> Power:
        self.hang.wait()
        failure = self._script.pop(0) if self._script else None
        if failure is not None:
            raise failure
        t0_ns, self._t0_ns = self._t0_ns, monotonic_ns()
        return Power(t0_ns=t0_ns, t1_ns=self._t0_ns, power_mw=1, source="other")

    def close(self) -> None:
        self.closed += 1


def test_a_driver_that_hangs_does_not_keep_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter_module, "_JOIN_S", 0.05)
    record, instrument = Recorded(), Scripted()
    instrument.hang.clear()
    meter = DeviceMeter(device(), record, ANCHOR, PERIOD_S, instrument)
    meter.start()
    meter.stop()
    instrument.hang.set()
    until(lambda: instrument.closed)
    assert not record, "nothing is recorded after the end"


def test_cores_that_work_are_busy() -> None:
    script = f"""import os, sys
os.sched_setaffinity(0, [{CORE}])
end = os.times().elapsed + 0.3
while os.times().elapsed < end: pass
print(flush=True)
sys.stdin.read()"""
    cores = CoresInstrument([CORE])
    cores.open()
    child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    reading = cores.read()
    child.communicate("")
    assert reading.busy_share is not None
    assert 0 < reading.busy_share <= 1
    with pytest.raises(UnreadableError, match=r"cores \[100000\] are offline, or this host does not have them"):
        CoresInstrument([CORE, 100_000]).open()
