import os
import shutil
import signal
from contextlib import closing
from dataclasses import replace

import pytest

from rose.clock import monotonic_ns
from rose.ledger.files import layout, spool
from rose.ledger.writer import LedgerWriter
from rose.runtime.agent import host_agent, rollout_engine
from rose.runtime.agent.host_agent import HostAgent
from rose.runtime.coserving.page import ArbiterPage, Party
from rose.runtime.engines import adoption
from rose.runtime.engines.adoption import EngineRecord
from rose.runtime.engines.sglang import EngineError
from tests.runtime.agent.agents_in_turn import SECOND, Host, Recording, until
from tests.runtime.coserving.parties import OtherParty
from tests.runtime.coserving.stand_in_engine import LastingEngine, stand_in_spec


class TwoDevices(Recording):
    def __init__(self, folder, gateway):
        self.folder, self.ledger = folder, folder / "ledger"
        self.specs = [self._spec(folder / name, name, gateway) for name in ("d0", "d1")]
        self.agent = self.writer = None

    def _spec(self, folder, name, gateway):
        folder.mkdir()
        spec = Host(folder, gateway, engine=stand_in_spec(folder, f"{name}-rollout")).spec
        device = spec.device.model_copy(update={"id": name, "pool": "rollout"})
        return replace(spec, device=device, serving_engine_id=None)

    def start(self):
        self.writer = LedgerWriter.open(self.ledger, "agent", "fleet", flush_interval_s=0.05)
        self.agent = HostAgent(self.writer, self.specs, make_engine=LastingEngine)
        self.agent.start()

    def only_one_that_is_lent(self, gateway):
        spec = self.specs[0]
        self.specs = [replace(spec, device=spec.device.model_copy(update={"pool": "serving"}))]
        gateway.want(**{"d0-rollout": 600 * SECOND})
        return self.specs[0]

    def lend(self):
        serving = OtherParty(self.specs[0].page, Party.SERVING)
        serving.do("page.set_load(load)")
        with closing(ArbiterPage(self.specs[0].page)) as page:
            until(lambda: page.lease().expires_ns > monotonic_ns())
        return serving

    def stop(self, **how):
        self.agent.stop(**how)
        self.writer.close()

    def engine_pid(self, number):
        record = EngineRecord.read(self.specs[number].page)
        return None if record is None else record.pid


@pytest.fixture
def devices(tmp_path, gateway, monkeypatch):
    monkeypatch.setattr(rollout_engine, "BACK_OFF_FIRST_S", 0.1)
    monkeypatch.setattr(host_agent, "BACK_OFF_FIRST_S", 0.1)
    monkeypatch.setattr(host_agent, "_LOOK_S", 0.05)
    made = TwoDevices(tmp_path, gateway)
    yield made
    if made.agent is not None:
        made.stop()
    for record in adoption.living(tmp_path):
        os.kill(record.pid, signal.SIGKILL)


def test_a_device_that_cannot_be_had_is_none_of_the_others_and_is_had_when_it_can(devices):
    other = ArbiterPage.create(devices.specs[0].page)
    devices.start()
    until(lambda: list(devices.agent.faults()) == ["d0"])
    assert "writes the section AGENT" in devices.agent.faults()["d0"]
    assert devices.agent.agent("d1") is not None
    other.close()
    until(lambda: not devices.agent.faults())
    devices.stop()
    assert devices.rows("SELECT device_id, count(*) FROM tenure GROUP BY ALL ORDER BY ALL") == [("d0", 1), ("d1", 1)]
    assert devices.rows("SELECT DISTINCT writer FROM device_slice") == [("agent",)]


def test_a_device_whose_page_was_removed_gets_another_and_is_lent_again(devices, gateway, monkeypatch):
    monkeypatch.setattr("rose.runtime.agent.agent.SLICE_NS", SECOND // 10)
    spec = devices.only_one_that_is_lent(gateway)

    def agent_after(former):
        until(lambda: devices.agent.agent("d0") not in (former, None))
        return devices.agent.agent("d0")

    devices.start()
    first = agent_after(None)
    with devices.lend():
        pid = devices.engine_pid(0)
        # As systemd-logind does when the last session of a user who is none of the system's ends.
        shutil.rmtree(spec.page.parent)
        second = agent_after(first)
    with pytest.raises(EngineError, match=f"its page {spec.page} was removed"):
        first.check()
    with devices.lend():
        assert devices.engine_pid(0) not in (pid, None)
        assert devices.agent.agent("d0") is second
        devices.stop()
    leases = devices.rows("SELECT lease_id, closed_by IS NOT NULL FROM lease ORDER BY granted_at")
    assert leases == [(f"fleet-d0-{number}", True) for number in range(1, len(leases) + 1)]
    slices = devices.rows("SELECT t0_ns, t1_ns FROM device_slice ORDER BY t0_ns")
    assert [t1_ns for _, t1_ns in slices[:-1]] == [t0_ns for t0_ns, _ in slices[1:]]
    assert devices.rows("SELECT count(*) FROM tenure") == [(1,)]


def test_a_host_whose_disk_is_new_names_no_lease_as_it_did_before(devices, gateway):
    spec = devices.only_one_that_is_lent(gateway)

    def granted():
        layout.create(devices.ledger)
        (devices.ledger / spool.FOLDER).mkdir(parents=True)
        devices.start()
        until(lambda: devices.agent.agent("d0") is not None)
        with devices.lend():
            devices.stop()
        ids = devices.rows("SELECT lease_id FROM lease ORDER BY granted_at")
        numbers = [int(lease_id.removeprefix("fleet-d0-")) for (lease_id,) in ids]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        return numbers

    first = granted()
    shutil.rmtree(devices.ledger)
    shutil.rmtree(spec.page.parent)
    assert not set(granted()) & set(first)
