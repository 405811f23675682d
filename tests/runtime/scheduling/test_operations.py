import asyncio
import re
import time
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from rose.ledger.writer import LedgerWriter
from rose.runtime.scheduling import workers
from rose.runtime.scheduling.messages import CloseRun
from tests.ledger.conftest import ask
from tests.runtime.scheduling.stand_ins import (
    SERVERS,
    beat,
    call,
    fleet,
    gateway,
    open_run,
    play,
    post,
    publish,
    report,
    until,
)

BODY = {"input_ids": [1], "sampling_params": {"max_new_tokens": 50}}


async def test_readiness_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(workers, "SILENCE_MAX_NS", 300_000_000)
    monkeypatch.setattr("rose.runtime.scheduling.status.SILENCE_MAX_NS", 300_000_000)
    async with gateway(devices={"device-of-e0": None, "gpu-7": None}) as (session, _):
        status, answer = await call(session, "GET", "/readiness")
        assert (status, len(answer["missing"])) == (503, 2)
        async with fleet(session):
            await asyncio.sleep(0.1)
            _, answer = await call(session, "GET", "/readiness")
            assert answer["missing"] == ["device gpu-7: its agent has not reported"]
            await beat(session, device_id="gpu-7")
            assert await call(session, "GET", "/readiness") == (200, {"ready": True, "missing": [], "warnings": []})
        await asyncio.sleep(0.4)
        status, answer = await call(session, "GET", "/readiness")
        assert status == 503
        assert any(reason.startswith("device ") for reason in answer["missing"])
        assert not any("engine" in reason for reason in answer["missing"]), "its engine may be well"
        assert (await call(session, "GET", "/health"))[0] == 200


async def test_readiness_names_dead_engines():
    async with gateway() as (session, _):
        await beat(session, report("http://x", alive=False), device_id="device-of-e0")
        assert (await call(session, "GET", "/readiness"))[1]["missing"] == ["no rollout engine is alive"]


async def test_a_drained_device_is_left_and_taken_no_turn(tmp_path):
    async with play(state=tmp_path) as run, fleet(run.session, 2, pause_s=0.01) as agents:
        session, turn = run.session, asyncio.create_task(run.post(BODY))
        await until(lambda: any(agent.engine.running for agent in agents))
        (busy,) = [agent for agent in agents if agent.engine.running]
        path = f"/devices/{busy.device_id}"
        assert await post(session, f"{path}/drain", {"reason": "new driver"}) == (200, {"drained": [busy.device_id]})
        status, answer = await turn
        first, second = answer["meta_info"]["rose"]["attempts"]
        assert (status, first["device_id"], first["outcome"]) == (200, busy.device_id, "preempted")
        assert second["device_id"] != busy.device_id
        assert busy.reply["drained"] is True
        _, shown = await call(session, "GET", "/status")
        reasons = {device["device_id"]: device["not_lent"] for device in shown["devices"]}
        assert reasons[busy.device_id] == "drained: new driver"
    async with gateway(state=tmp_path) as (session, _), fleet(session, 2):
        await until(lambda: len(SERVERS[0].controller.devices) == 2)
        _, shown = await call(session, "GET", "/status")
        assert [device["device_id"] for device in shown["devices"] if device["drained"]] == [busy.device_id]
        assert (await post(session, f"{path}/undrain", None))[0] == 200
        _, shown = await call(session, "GET", "/status")
        assert not any(device["drained"] for device in shown["devices"])
        both = {"device-of-e0", "device-of-e1"}
        assert set((await post(session, "/devices/drain", {}))[1]["drained"]) == both
        await until(lambda: all(worker.drained for worker in SERVERS[0].controller.workers.values()))
        assert set((await post(session, "/devices/undrain", None))[1]["undrained"]) == both
        assert (await post(session, "/devices/undrain", None)) == (200, {"undrained": []})
        status, answer = await post(session, "/devices/gpu-9/drain", {})
        assert (status, "'gpu-9'" in answer["error"]["message"]) == (404, True)


BUSY = {"serving_ns": 57_600_000_000, "observed_ns": 60_000_000_000}
NOT_LENT = [
    ({}, {"fault": "serving is late", "fault_name": "serving_late"}, "serving_late", "serving is late"),
    ({}, {"fault": "the page is gone"}, "engine_away", "the page is gone"),
    ({"alive": False}, {}, "engine_away", "engine e2 is not alive"),
    ({"alive": False, "fault": "it is being started"}, {}, "engine_away", "it is being started"),
    ({"failed": "no route to http://store"}, {}, "sync_failed", "no route to http://store"),
    ({"borrowed": True}, {}, "no_demand", "no run"),
    ({"borrowed": True, "run_id": "closed-run"}, {}, "no_demand", "no run"),
    (None, {}, "no_engine", "rollout engine"),
]


async def test_status_says_why_nothing_is_lent():
    async with gateway() as (session, _):
        for number, (changes, fields, *_) in enumerate(NOT_LENT):
            reports = [] if changes is None else [report("http://x", f"e{number}", **changes)]
            await beat(session, *reports, device_id=f"d{number}", **fields)
        _, shown = await call(session, "GET", "/status")
        for device, (*_, name, part) in zip(shown["devices"], NOT_LENT, strict=True):
            assert (device["reason"], part in device["not_lent"]) == (name, True)


async def test_why_nothing_is_lent_is_in_the_ledger_while_turns_wait(tmp_path, monkeypatch):
    """A lent engine that gets no core cannot take the newest version, and nothing else says what its turns wait for."""
    monkeypatch.setattr("rose.runtime.scheduling.controller.LOOK_NS", 10_000_000)
    with LedgerWriter.open(tmp_path, "controller", "fleet-1") as writer:
        async with gateway(writer=writer) as (session, _):
            opened = await open_run(session)
            run_id = opened["run_id"]
            lent = {"borrowed": True, "run_id": run_id}
            await publish(session, opened, 0)
            await beat(session, report("http://x", **lent), **BUSY)
            await publish(session, opened, 5)
            waiting = asyncio.create_task(
                post(session, f"/runs/{run_id}/generate", BODY | {"rose": {"version_min": 5}})
            )
            await until(lambda: len(SERVERS[0].controller.queue))
            for failed in (None, "it did not answer"):
                await beat(session, report("http://x", **lent, failed=failed), **BUSY)
                await asyncio.sleep(0.1)
            _, shown = await call(session, "GET", "/status")
            assert shown["devices"][0]["reason"] == "sync_failed"
            assert "serving was at work 96% of the last minute" in shown["devices"][0]["not_lent"]
            # The lease ends the hold. Turns that wait for nothing else are no hold of the device.
            await beat(session, report("http://x", **lent, lease_id="L", lease_left_ns=10**10, policy_version=5))
            await call(session, "DELETE", f"/runs/{run_id}", {"fence": 1})
            await waiting
            await beat(session, report("http://x", **lent), **BUSY)
            await asyncio.sleep(0.1)
    columns = "device_id, engine_id, lease_id, rl_run_id, reason, explanation, duration_ns"
    rows = ask(tmp_path, f"SELECT {columns} FROM hold ORDER BY event_time")
    assert [row[:5] for row in rows] == [
        ("device-of-e0", "e0", None, run_id, "sync"),
        ("device-of-e0", "e0", None, run_id, "sync_failed"),
    ]
    assert all("serving was at work 96% of the last minute" in row[5] and row[6] > 0 for row in rows)


async def test_status_has_hosts_leases_runs_and_no_secret():
    async with gateway("secret-of-the-tests") as (session, _):
        opened = await open_run(session, team="research")
        await publish(session, opened, 3, token="secret-of-store")
        lent = {"borrowed": True, "lease_id": "L", "lease_left_ns": 5 * 10**9, "run_id": opened["run_id"]}
        clock = {"monotonic_ns": 1, "utc_ns": time.time_ns() + 3_000_000_000}
        await beat(session, report("http://x", **lent), host="node-3", clock=clock)
        async with session.get("/status") as response:
            text = await response.text()
            shown = await response.json()
        assert "secret" not in text
        (device,) = shown["devices"]
        assert device["host"] == "node-3"
        assert 2.9e9 < device["clock_offset_ns"] < 3.1e9
        assert device["not_lent"] is None
        (engine,) = device["engines"]
        assert (engine["lease_id"], engine["engine_id"]) == ("L", "e0")
        assert 4 < engine["lease_left_s"] <= 5
        (run,) = shown["runs"]
        assert (run["team"], run["version"], run["state"]) == ("research", 3, "open")
        assert 59 < run["expires_in_s"] <= 60


async def test_metrics_are_what_prometheus_reads_until_long_after_a_run_has_ended():
    """A thousand ended runs are remembered, and each would have six series until the controller is restarted."""
    async with gateway() as (session, _), fleet(session):
        controller, opened = SERVERS[0].controller, await open_run(session)
        run_id = opened["run_id"]
        await publish(session, opened, 3)
        await post(session, f"/runs/{run_id}/generate", BODY)
        samples, _ = await figures(session)
        expected = {
            ("rose_turns_total", "completed", run_id): 1,
            ("rose_output_tokens_total", run_id): 50,
            ("rose_attempts_total", "completed", run_id): 1,
            ("rose_run_version", run_id): 3,
            ("rose_run_engines", run_id): 1,
            ("rose_engine_policy_version", "device-of-e0", "e0"): 3,
            ("rose_controller_ready",): 1,
        }
        assert {name: samples[name] for name in expected} == expected
        assert samples["process_resident_memory_bytes",] > 0
        controller.close_run(run_id, CloseRun(fence=1))
        samples, _ = await figures(session)
        assert samples["rose_turns_total", "completed", run_id] == 1, "its last figures must be scraped"
        controller.runs.get(run_id).facts.closed_us -= 3601 * 1_000_000
        samples, _ = await figures(session)
        assert not [sample for sample in samples if run_id in sample]


async def test_a_state_that_cannot_be_written_is_said_and_turns_go_on():
    async with gateway() as (session, _), fleet(session):
        opened = await open_run(session, expires_s=0.2)
        await publish(session, opened)
        controller = SERVERS[0].controller
        controller.state._connection.execute("PRAGMA query_only = ON")
        status, answer = await post(session, "/runs", {"name": "n", "model": "m"})
        assert (status, "cannot be read or written" in answer["error"]["message"]) == (503, True)
        await asyncio.sleep(0.3)
        for _ in range(2):
            status, answer = await call(session, "GET", "/readiness")
            assert (status, ["cannot be read or written" in reason for reason in answer["missing"]]) == (503, [True])
        assert (await post(session, f"/runs/{opened['run_id']}/generate", BODY))[0] == 200
        controller.state._connection.execute("PRAGMA query_only = OFF")
        assert (await call(session, "GET", "/readiness"))[0] == 200
        await until(lambda: controller.runs.get(opened["run_id"]).facts.state == "expired")


REVOKED = "the token was not valid any more: 'rack-2' was revoked"
FACTS = {"events_dropped": 7}


async def figures(session):
    async with session.get("/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain")
        families = list(text_string_to_metric_families(await response.text()))
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value for family in families for sample in family.samples
    }
    return samples, {family.name for family in families}


async def test_a_host_whose_events_wait_is_told_of_and_gets_turns_all_the_same():
    async with gateway() as (session, _):
        lately = {**FACTS, "segments_waiting": 3, "waiting_s": 20.0, "problem": REVOKED}
        await beat(session, report("http://x"), device_id="d1", host="rack-1")
        await beat(session, report("http://x", "e2", device_id="d2"), device_id="d2", host="rack-2", host_facts=lately)
        _, shown = await call(session, "GET", "/status")
        (host,) = shown["hosts"]
        assert {name: host[name] for name in lately} == lately
        assert (host["host"], shown["warnings"]) == ("rack-2", [])
        assert host["waits"] == f"3 segments of events wait on the host: {REVOKED}"
        assert (await call(session, "GET", "/readiness"))[1]["warnings"] == []
        long = lately | {"segments_waiting": 42_000, "waiting_s": 86_400.0}
        await beat(session, report("http://x", "e3", device_id="d3"), device_id="d3", host="rack-2", host_facts=long)
        status, answer = await call(session, "GET", "/readiness")
        assert (status, answer["ready"]) == (200, True)
        assert answer["warnings"] == [
            f"host rack-2: 42,000 segments of events wait on the host, the oldest for 1,440 min: {REVOKED}"
        ]
        samples, _ = await figures(session)
        assert samples["rose_host_segments_waiting", "rack-2"] == 42_000
        assert samples["rose_host_waiting_seconds", "rack-2"] == 86_400
        assert samples["rose_host_events_dropped_total", "rack-2"] == 7


async def test_a_host_with_the_ledger_itself_has_nothing_that_waits_and_each_figure_is_documented():
    async with gateway() as (session, _):
        await beat(session, report("http://x"), host="rack-1", host_facts=FACTS)
        _, shown = await call(session, "GET", "/status")
        assert (shown["hosts"][0]["waits"], shown["hosts"][0]["segments_waiting"]) == (None, None)
        samples, families = await figures(session)
    assert ("rose_host_segments_waiting", "rack-1") not in samples
    assert samples["rose_host_events_dropped_total", "rack-1"] == 7
    documented = re.findall(r"`(rose_\w+)`", (Path(__file__).parents[3] / "docs" / "fleet.md").read_text())
    exported = {name for name in families if name.startswith("rose_")}
    assert {name.removesuffix("_total") for name in documented} == exported
