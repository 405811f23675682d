"""Two trainers, one after the other, on a real engine: the built-in loop, and the plain one of the examples."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from rose import client, config, private_files
from rose.clock import Anchor
from rose.ledger import catalog
from rose.ledger.verify import verify
from rose.ledger.writer import LedgerWriter
from rose.runtime.coserving.agent.agent import AgentSpec, DeviceAgent
from rose.runtime.coserving.hooks.settings import PluginSettings
from rose.runtime.engines.ports import free_port
from rose.runtime.engines.sglang import EngineSpec
from rose.runtime.policy.slack import Budgets
from rose.runtime.training.policy_model import Policy
from tests.client.fleet import AGENT_TOKEN, Fleet
from tests.examples.test_plain_loop import PROGRAM
from tests.runtime.conftest import ENVIRONMENT
from tests.runtime.training.frozenlake_fleet import FILE
from tests.runtime.training.test_loop import learn

STEPS = 3


@pytest.fixture
def device():
    """A device whose page lies where agents of this host have theirs."""
    folder = private_files.make(Path("/dev/shm") / f"rose-{uuid.uuid4().hex}")
    cores = os.sched_getaffinity(0)
    yield f"device-{folder.name}", folder
    # The trainer keeps its process off the cores of serving devices.
    os.sched_setaffinity(0, cores)
    shutil.rmtree(folder, ignore_errors=True)


def agent_of(device_id, folder, tmp_path, there, model, fork_server, record):
    page, staging = folder / device_id / "page", folder / device_id / "staging"
    engine = EngineSpec(
        engine_id="e0",
        model=str(model),
        model_name="frozenlake-tiny",
        port=free_port(),
        any_port=True,
        max_total_tokens=4096,
        plugin=PluginSettings("rollout", page, staging, gated=False),
        log=tmp_path / "engine.log",
        token_ids_only=True,
        environment=ENVIRONMENT,
        fork_server=fork_server.path,
    )
    spec = AgentSpec(
        device=config.DeviceConfig(id=device_id, pool="rollout", device_class="cpu-core", cores=[0], kv_bytes=1 << 20),
        coserving=config.CoservingConfig(heartbeat_s=0.2, drift_audit_s=0),
        budgets=Budgets(1, 1),
        max_prompt_tokens=10,
        run_id="fleet",
        anchor=Anchor.take(),
        page=page,
        staging=staging,
        rollout=engine,
        rollout_capacity=32,
        rollout_kv_bytes_per_token=2,
        serving_engine_id=None,
        serving_model="m",
        serving_kv_bytes_per_token=4,
        gateway_url=there.url,
        agent_token=AGENT_TOKEN,
    )
    return DeviceAgent(spec, record)


async def streamed(run):
    return [part async for part in run.stream([1, 2, 3], {"max_new_tokens": 16, "ignore_eos": True})]


@pytest.mark.live
def test_trainers_come_and_go_on_a_real_engine(tmp_path, tiny_policy, fork_server, device):
    ledger = tmp_path / "ledger"
    (tmp_path / "state").mkdir()
    with (
        LedgerWriter.open(ledger, "controller", "fleet") as writer,
        Fleet(tmp_path / "state", [], writer=writer, model=None) as there,
    ):
        agent = agent_of(*device, tmp_path, there, tiny_policy, fork_server, writer.record)
        try:
            agent.start()
            text = FILE.format(cache=tmp_path, model=tiny_policy, steps=STEPS).replace('"r"', f'"{device[0]}"')
            fleet_file = config.parse(text, "the test's")
            built_in = learn(tmp_path, there.url, tiny_policy, steps=STEPS, device=device[0], fleet=fleet_file)
            command = [sys.executable, PROGRAM, there.url, tiny_policy, "1"]
            plain = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            assert plain.returncode == 0, plain.stderr
            with client.open_run(there.url, name="streams", model="frozenlake-tiny") as run:
                weights = Policy.load(tiny_policy).named_parameters()
                run.publish({name: tensor.bfloat16() for name, tensor in weights}, version=5)
                parts = asyncio.run(streamed(run))
        finally:
            agent.stop()
    assert verify(ledger).ok, verify(ledger).problems
    with catalog.connect(ledger) as connection:

        def rows(query):
            return connection.execute(query).fetchall()

        assert rows(f"SELECT step, policy_version FROM step WHERE run_id = '{built_in}' ORDER BY step") == [
            (step, step + 1) for step in range(STEPS)
        ]
        syncs = rows("SELECT rl_run_id, policy_version, encoding, reason FROM sync ORDER BY event_time")
        trained = rows("SELECT sum(train_ns) FROM device_slice WHERE train_run_id IS NOT NULL")
        runs = dict(rows("SELECT run_id, count(*) FROM turn GROUP BY run_id"))
    # Whoever has the last version may find its trainer gone when it acknowledges it.
    last = {(built_in, STEPS), *((run_id, version) for run_id in runs for version in (1, 5) if run_id != built_in)}
    assert {sync[:2] for sync in syncs if sync[-1] is not None} <= last
    assert {(run_id, version, encoding) for run_id, version, encoding, _ in syncs} >= {(built_in, 0, "dense")}
    assert trained[0][0] > 0
    assert set(runs) > {built_in}
    assert len(runs) == 3
    assert len(parts) > 1
    assert not any(part.anew for part in parts)
    made = parts[-1].generation
    assert [token for part in parts for token in part.output_ids] == made.output_ids
    assert [version for part in parts for version in part.versions] == made.versions == [5] * len(made.output_ids)
