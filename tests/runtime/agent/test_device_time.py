import time
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

from rose.clock import Anchor, monotonic_ns
from rose.events import Device, DeviceSlice
from rose.ledger.files import catalog
from rose.ledger.writer import LedgerWriter
from rose.runtime.agent.host_agent import HostAgent
from rose.runtime.agent.succession import kept_anchor, predecessor, same_anchor
from rose.runtime.coserving.page import Party
from tests.runtime.agent.agents_in_turn import SECOND, Host, Recording, idle_slice, lease_event, local_relays, until
from tests.runtime.agent.scripted_gateway import ScriptedGateway
from tests.runtime.coserving.parties import OtherParty

HOUR = 3_600_000_000_000


class Trainer(Recording):
    def __init__(self, folder, monkeypatch):
        self._folder, self.ledger, self._patch = folder, folder / "ledger", monkeypatch
        self._true_ns, self._boots = time.time_ns, 0
        self._agent = self._writer = None
        monkeypatch.setattr("rose.runtime.agent.agent.SLICE_NS", SECOND // 10)
        spec = Host(folder, SimpleNamespace(url="http://127.0.0.1:1")).spec
        self._spec = replace(spec, device=spec.device.model_copy(update={"pool": "train"}), rollout=None)
        self.forget()

    def set_wall(self, ahead_ns):
        self._patch.setattr(time, "time_ns", lambda: self._true_ns() + ahead_ns)

    def forget(self):
        for path in self._folder.glob("page*"):
            path.unlink()

    def boot(self, ahead_ns):
        self._boots += 1
        self._patch.setattr("rose.runtime.agent.succession.boot_id", lambda: f"boot {self._boots}")
        self.forget()
        self.set_wall(ahead_ns)

    def agent(self, *, leave):
        self._writer = LedgerWriter.open(self.ledger, "agent", "fleet", flush_interval_s=0.05)
        recorded, record = [], self._writer.record

        def record_and_keep(event, **options):
            record(event, **options)
            recorded.append(type(event))

        self._patch.setattr(self._writer, "record", record_and_keep)
        self._agent = HostAgent(self._writer, [replace(self._spec, anchor=Anchor.take())], local_relays(self._folder))
        self._agent.start()
        until(lambda: DeviceSlice in recorded)
        self.close(leave=leave)

    def close(self, *, leave=False):
        if self._agent is not None:
            self._agent.stop(leave=leave)
            self._writer.close()
            self._agent = None

    def check(self, *, tenures):
        with catalog.connect(self.ledger) as connection:
            assert connection.execute("FROM uncounted_time").fetchall() == []
        stays = self.rows("SELECT joined_ns, left_ns FROM tenure ORDER BY joined_ns")
        assert len(stays) == tenures
        slices = self.rows("SELECT t0_ns, t1_ns FROM device_slice ORDER BY t0_ns")
        gaps = [(end_ns, begin_ns) for (_, end_ns), (begin_ns, _) in pairwise(slices) if end_ns != begin_ns]
        assert [(left_ns, joined_ns) for (_, left_ns), (joined_ns, _) in pairwise(stays)] == gaps
        assert (slices[0][0], slices[-1][1]) == (stays[0][0], stays[-1][1])
        assert self.rows("SELECT joined_ns, left_ns FROM device") == [(stays[0][0], stays[-1][1])]
        changes = self.rows("SELECT t_ns, at_us FROM event WHERE kind = 'device' ORDER BY seq")
        assert changes == sorted(changes)
        assert all(t_ns // 1000 == at_us for t_ns, at_us in changes)


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    made = Trainer(tmp_path, monkeypatch)
    yield made
    made.close()


def test_time_of_a_device_never_goes_back_whatever_its_clock_does(trainer):
    trainer.set_wall(HOUR)
    trainer.agent(leave=True)
    # A boot with a clock that is behind, and one that was set meanwhile.
    trainer.boot(-HOUR)
    trainer.agent(leave=True)
    trainer.set_wall(0)
    trainer.agent(leave=False)
    # It joins again after it left.
    trainer.forget()
    trainer.agent(leave=False)
    trainer.check(tenures=2)


def test_what_an_agent_records_is_by_the_clock_of_its_slices(tmp_path, monkeypatch):
    read = time.time_ns
    monkeypatch.setattr("rose.runtime.agent.agent.SLICE_NS", SECOND // 5)
    with ScriptedGateway() as gateway:
        host = Host(tmp_path, gateway)
        anchor = host.spec.anchor
        monkeypatch.setattr(time, "time_ns", lambda: read() + HOUR)
        began_us = anchor.now_us()
        try:
            host.next_agent()
            host.serving = OtherParty(host.spec.page, Party.SERVING)
            host.serving.do("page.set_load(load)")
            host.serving.do("describe(path, Attachment(role='serving', pid=page.get(me, Field.PID), model='m'))")
            gateway.want(r0=60 * SECOND)
            until(lambda: host.lent)
            gateway.aim(r0=("one", 1, "file:///nowhere"))
            until(lambda: host.rows("SELECT count(*) FROM sync")[0][0] > 0, every_s=0.1)
            host.agent.stop(leave=True)
            host.writer.close()
            before = predecessor(host.ledger, "fleet", "d0", anchor)
            assert all(began_us <= anchor.utc_us(change.at_ns) <= anchor.now_us() for change in before.leases)
            host.next_agent()
            until(lambda: host.rows("SELECT count(*) FROM lease")[0][0] > 1, every_s=0.1)
            until(lambda: host.rows("SELECT count(DISTINCT lease_id) FROM device_slice")[0][0] > 1, every_s=0.1)
            host.agent.stop()
            host.writer.close()
        finally:
            host.close()
    kinds = {kind for (kind,) in host.rows("SELECT DISTINCT kind FROM event")}
    assert {"device", "device_slice", "lease", "engine", "sync"} <= kinds
    late = (
        f"SELECT kind, action FROM event WHERE kind <> 'ledger' AND at_us NOT BETWEEN {began_us} AND {anchor.now_us()}"
    )
    assert host.rows(late) == []
    # A slice is of a lease from its grant, which the ledger has first, to its end, which it has a moment later.
    outside = host.rows(
        "SELECT s.lease_id FROM device_slice AS s LEFT JOIN lease AS l USING (lease_id) WHERE s.lease_id IS NOT NULL "
        "AND coalesce(s.t0 < l.granted_at OR s.t1 > l.closed_at, true)"
    )
    assert outside == []


def test_device_time_begins_after_all_that_is_known_of_the_device_at_each_boot(tmp_path, monkeypatch):
    page, ledger = tmp_path / "d0" / "page", tmp_path / "ledger"
    t_ns = time.time_ns() + HOUR

    def begin(run_id="fleet", offset_ns=5):
        return same_anchor(page, ledger, run_id, "d0", Anchor(offset_ns))

    def boot(name):
        monkeypatch.setattr("rose.runtime.agent.succession.boot_id", lambda: name)
        anchor = begin()
        assert kept_anchor(page, "fleet") == anchor
        return anchor.utc_ns(monotonic_ns())

    with LedgerWriter.open(ledger, "agent", "fleet") as writer:
        assert kept_anchor(page, "fleet") is None
        assert begin() == Anchor(5)
        assert begin(offset_ns=6) == Anchor(5), "the wall clock was set meanwhile"
        assert begin("another", 7) == Anchor(7)
        writer.record(
            Device(
                at_us=t_ns // 1000, device_id="d0", action="joined", t_ns=t_ns, pool="serving", device_class="cpu-core"
            )
        )
        assert t_ns <= boot("the second") < t_ns + HOUR // 2
        end_ns = t_ns + HOUR
        writer.record(idle_slice(t_ns, end_ns), durable=True)
        assert end_ns <= boot("the third") < end_ns + HOUR // 2
        # A power cut came before the next slice.
        end_us = end_ns // 1000 + 2_000_000
        writer.record(lease_event("l", "granted", end_us))
        assert 1000 * end_us <= boot("the fourth") < end_ns + HOUR // 2
        assert begin("another", 8) == Anchor(8), "it is another fleet's"
