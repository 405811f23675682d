"""The loop over real processes and a real gateway; what stands in for engines answers at once."""

from __future__ import annotations

import os
import signal

import pytest

from rose.clock import Anchor
from rose.config import TaskConfig, TrainingConfig
from rose.ledger import catalog, layout
from rose.ledger.verify import verify
from rose.runtime import actors
from rose.runtime.actors import Place
from rose.runtime.cluster import Cluster
from rose.runtime.coserving.page import ArbiterPage
from rose.runtime.engines.ports import free_port
from rose.runtime.rl_loop import LoopParts, RlLoop
from rose.runtime.scheduling.client import ControlClient
from rose.runtime.supervision import Part, Supervisor
from tests.long_form import usual
from tests.runtime import engine_agent

pytestmark = pytest.mark.timeout(180)

TRAINING = TrainingConfig(steps=4, groups_per_step=4, group_size=2, minibatches=1)
TASK = TaskConfig(size=3, turns_max=4, workers=2, trajectories_max=3)


class Run:
    """A deployment but for SGLang and traffic."""

    def __init__(self, folder, checkpoint, cluster, staleness_max):
        training = TRAINING.model_copy(update={"staleness_max": staleness_max})
        self.ledger, self.said, self.done = folder / "ledger", [], []
        layout.create(self.ledger)
        self.page = ArbiterPage.create(folder / "page")
        self.cluster = cluster
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
                    actors.TrainerActor, place, str(checkpoint), training, folder / "store", self.page.path
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
            training=training,
            parts=LoopParts(
                agents=self.agents, trainer=self.trainer, rollouts=self.rollouts, gateway=ControlClient(url)
            ),
            supervisor=self.supervisor,
            say=self.said.append,
            tend=self.tend,
        )
        #: What is to be killed while rollouts are played, and when: (after so many steps, the part).
        self.victims = []
        self.stopped = False

    def tend(self):
        for steps, part in list(self.victims):
            # The trainer has work to the end; where steps overlap, the last rollouts may be over by then.
            at_work = part is self.trainer or any(worker.report for worker in self.rollouts)
            if len(self.done) >= steps and part.actor is not None and at_work:
                self.victims.remove((steps, part))
                kill(part.actor)

    def stop(self):
        if self.stopped:
            return
        self.stopped = True
        for group in (self.rollouts, self.agents, [self.trainer, self.gateway]):
            self.cluster.settle([part.actor.stop.remote() for part in group], 10)
        for part in (*self.rollouts, *self.agents, self.trainer, self.gateway):
            self.cluster.kill(part.actor)
        self.page.close()


def kill(actor):
    """SIGKILL the process that Ray runs an actor in, without Ray knowing."""
    from ray._private.state import actors as known

    os.kill(known(actor._actor_id.hex())["Pid"], signal.SIGKILL)


@pytest.fixture(scope="module")
def cluster():
    import ray

    # Ray's processes cannot import the tests.
    ray.cloudpickle.register_pickle_by_value(engine_agent)
    cluster = Cluster()
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
def run(request, tmp_path, tiny_policy, cluster):
    run = Run(tmp_path, tiny_policy, cluster, staleness_max=request.param)
    try:
        yield run
    finally:
        run.stop()


def rows(run, query):
    with catalog.connect(run.ledger) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.parametrize("run", usual([2], long=[0, 1, 2]), indirect=True)
def test_whatever_is_killed_the_loop_plays_its_steps(run):
    run.victims = [(1, run.gateway), (1, run.rollouts[0]), (1, run.agents[0]), (2, run.trainer)]
    run.loop.publish_first()
    run.loop.run(run.done.append)
    assert [report.version for report in run.done] == [1, 2, 3, 4]
    assert all(report.trajectories == 8 for report in run.done)
    assert run.victims == []
    restarts = {part.name: part.restarts for part in (run.gateway, *run.rollouts, *run.agents, run.trainer)}
    assert restarts == {"the gateway": 1, "worker 0": 1, "worker 1": 0, "agent 0": 1, "agent 1": 0, "the trainer": 1}
    run.stop()
    assert verify(run.ledger).ok, verify(run.ledger).problems
    steps = rows(run, "select step, policy_version, trajectories from step order by step")
    assert steps == [(0, 1, 8), (1, 2, 8), (2, 3, 8), (3, 4, 8)]
    assert rows(run, "select count(*) from trajectory where outcome = 'lost'") == [(0,)]
    assert rows(run, "select count(*), count(distinct trajectory_id) from verdict") == [(32, 32)]


@pytest.mark.parametrize("run", usual([2], long=[0, 1, 2]), indirect=True)
def test_steps_overlap_as_far_as_staleness_allows(run):
    run.loop.publish_first()
    run.loop.run(run.done.append)
    run.stop()
    check_overlap(run)
    assert rows(run, "select count(*) from verdict where stale") == [(0,)]
    assert rows(run, "select count(distinct trajectory_id), count(*) from verdict") == [(32, 32)]


def check_overlap(run):
    """Each step was played with weights that are as old as staleness allows, and no older."""
    staleness_max = run.loop.training.staleness_max
    # A step's first turn began when its first attempt did.
    times = rows(
        run,
        """
        WITH played AS (
            SELECT step, min(epoch_ns(event_time) - duration_ns - queue_ns) AS began_ns FROM turn GROUP BY step
        )
        SELECT step, began_ns, epoch_ns(event_time) AS ended_ns, rollout_ns, train_ns, sync_ns, total_ns
        FROM step JOIN played USING (step) ORDER BY step
        """,
    )
    began = {row[0]: row[1] for row in times}
    ended = {row[0]: row[2] for row in times}
    for step in range(TRAINING.steps):
        before = step - staleness_max - 1
        assert before < 0 or began[step] > ended[before], "its weights are those of a step that is over"
        if staleness_max > 0 and step > 0:
            assert began[step] < ended[step - 1], "it is played while the step before is trained"
    assert all(rollout + train + sync <= total for *_, rollout, train, sync, total in times)
    oldest = rows(run, "select step, min(policy_version), max(staleness) from trajectory group by step order by step")
    assert all(version >= step - staleness_max and stale == step - version for step, version, stale in oldest)


@pytest.mark.parametrize("run", [0], indirect=True)
def test_an_engine_that_missed_a_version_is_brought_to_it_again(run):
    run.loop.publish_first()
    run.cluster.result(run.agents[0].actor.miss.remote(1))
    run.loop.run(run.done.append)
    assert [report.version for report in run.done] == [1, 2, 3, 4]
    assert not [line for line in run.said if line.startswith("without version")]
    run.stop()
    check_overlap(run)
