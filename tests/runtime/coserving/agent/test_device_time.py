"""Device time where a host's wall clock is set: real agents and a real ledger, over a wall clock that is given."""

from __future__ import annotations

import time

from rose.runtime.coserving.agent.succession import predecessor
from rose.runtime.coserving.page import Party
from tests.runtime.coserving.agents_in_turn import SECOND, Host, until
from tests.runtime.coserving.parties import OtherParty
from tests.runtime.coserving.scripted_gateway import ScriptedGateway

HOUR = 3_600_000_000_000


def test_what_an_agent_records_is_by_the_clock_of_its_slices(tmp_path, monkeypatch):
    """The wall clock is set ahead once the agents have their anchor; the second agent goes on after the first."""
    read = time.time_ns
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
            until(lambda: host.rows("SELECT count(*) FROM sync")[0][0] > 0)
            host.agent.stop(leave=True)
            host.writer.close()
            before = predecessor(host.ledger, "fleet", "d0", anchor)
            assert all(began_us <= anchor.utc_us(change.at_ns) <= anchor.now_us() for change in before.leases)
            host.next_agent()
            until(lambda: host.rows("SELECT count(*) FROM lease")[0][0] > 1)
            until(lambda: host.rows("SELECT count(DISTINCT lease_id) FROM device_slice")[0][0] > 1)
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
