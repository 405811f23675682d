"""The loop over real processes and a real gateway; what stands in for engines answers at once."""

from __future__ import annotations

import os
import signal
import time

import pytest

from rose.clock import Anchor
from rose.config import TaskConfig, TrainingConfig
from rose.ledger import catalog, layout
from rose.ledger.verify import verify
from rose.runtime import actors
from rose.runtime.actors import Place
from rose.runtime.cluster import Cluster
from rose.runtime.coserving.page import ArbiterPage
from rose.runtime.engines.sglang import free_port
from rose.runtime.rl_loop import LoopParts, RlLoop
from rose.runtime.scheduling.client import ControlClient
from rose.runtime.supervision import Part, Supervisor
from tests.runtime import engine_agent

pytestmark = pytest.mark.timeout(180)

TRAINING = TrainingConfig(steps=3, groups_per_step=4, group_size=2, minibatches=1)
TASK = TaskConfig(size=3, turns_max=6, workers=2)


class Run:
    """A deployment but for SGLang and traffic."""

    def __init__(self, folder, checkpoint):
        import ray

        # Ray's processes cannot import the tests.
        ray.cloudpickle.register_pickle_by_value(engine_agent)
        self.ledger, self.said, self.done = folder / "ledger", [], []
        layout.create(self.ledger)
        self.page = ArbiterPage.create(folder / "page")
        self.cluster = Cluster()
        self.cluster.start()
        self.supervisor = Supervisor(self.cluster, self.said.append)
        spawn, start = self.cluster.spawn, self.supervisor.start
        place = Place(ledger=self.ledger, run_id="r", anchor=Anchor.take())
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        engine_ports = [free_port() for _ in range(2)]
        self.gateway = start(
            Part("the gateway", lambda _: spawn(actors.GatewayActor, place, "127.0.0.1", port, None, "rose"), "start")
        )
        self.agents = [
            start(
                Part(
                    f"agent {number}",
                    lambda _, number=number: spawn(
                        engine_agent.EngineAgent, f"e{number}", engine_ports[number], url, 0.2, threads=4
                    ),
                    "start",
                    "check",
                )
            )
            for number in range(2)
        ]
        self.trainer = start(
            Part(
                "the trainer",
                lambda _: spawn(
                    actors.TrainerActor, place, str(checkpoint), TRAINING, folder / "store", self.page.path
                ),
            )
        )
        self.rollouts = [
            start(
                Part(
                    f"worker {number}",
                    lambda _, number=number: spawn(actors.RolloutActor, place, number, TASK, url, None, 1.0),
                    watch="progress",
                )
            )
            for number in range(TASK.workers)
        ]
        self.supervisor.wait_begun([self.gateway, *self.agents], lambda: None)
        self.loop = RlLoop(
            run_id="r",
            training=TRAINING,
            parts=LoopParts(
                agents=self.agents, trainer=self.trainer, rollouts=self.rollouts, gateway=ControlClient(url)
            ),
            supervisor=self.supervisor,
            say=self.said.append,
            tend=self.tend,
        )
        #: What is to be killed, and when: (after so many steps, the part).
        self.victims = []
        self.began = time.monotonic()

    def tend(self):
        for steps, part in list(self.victims):
            if len(self.done) == steps and part.actor is not None and time.monotonic() - self.began > 0.3:
                self.victims.remove((steps, part))
                kill(part.actor)

    def finished(self, report):
        self.done.append(report)
        self.began = time.monotonic()

    def stop(self):
        if not self.cluster.running:
            return
        for group in (self.rollouts, self.agents, [self.trainer, self.gateway]):
            self.cluster.settle([part.actor.stop.remote() for part in group], 10)
        self.cluster.stop()
        self.page.close()


def kill(actor):
    """SIGKILL the process that Ray runs an actor in, without Ray knowing."""
    from ray._private.state import actors as known

    os.kill(known(actor._actor_id.hex())["Pid"], signal.SIGKILL)


@pytest.fixture
def run(tmp_path, tiny_policy):
    run = Run(tmp_path, tiny_policy)
    try:
        yield run
    finally:
        run.stop()


def test_whatever_is_killed_the_loop_plays_its_steps(run):
    run.victims = [(1, run.gateway), (1, run.rollouts[0]), (1, run.agents[0]), (2, run.trainer)]
    run.loop.publish_first()
    run.loop.run(run.finished)
    assert [report.version for report in run.done] == [1, 2, 3]
    assert all(report.trajectories == 8 for report in run.done)
    assert run.victims == []
    restarts = {part.name: part.restarts for part in (run.gateway, *run.rollouts, *run.agents, run.trainer)}
    assert restarts == {"the gateway": 1, "worker 0": 1, "worker 1": 0, "agent 0": 1, "agent 1": 0, "the trainer": 1}
    run.stop()
    assert verify(run.ledger).ok, verify(run.ledger).problems
    with catalog.connect(run.ledger) as connection:
        steps = connection.execute("select step, policy_version, trajectories from step order by step").fetchall()
        lost = connection.execute("select count(*) from trajectory where outcome = 'lost'").fetchone()[0]
        verdicts, named = connection.execute("select count(*), count(distinct trajectory_id) from verdict").fetchone()
    assert steps == [(0, 1, 8), (1, 2, 8), (2, 3, 8)]
    assert lost == 0
    assert verdicts == named == 24


def test_an_engine_that_missed_a_version_is_brought_to_it_again(run):
    run.loop.publish_first()
    run.cluster.result(run.agents[0].actor.miss.remote(1))
    run.loop.run(run.finished)
    assert [report.version for report in run.done] == [1, 2, 3]
    assert not [line for line in run.said if line.startswith("without version")]
