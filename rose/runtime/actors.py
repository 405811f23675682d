"""The processes of a deployment, as Ray runs them. Each is a thin shell: it opens its own ledger writer, sets its place
on the host's cores, and hands over to the class that does the work. Importing this module imports no torch.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rose.clock import Anchor, monotonic_ns
from rose.config import ServingConfig, TaskConfig, TrafficConfig, TrainingConfig
from rose.ledger.writer import LedgerWriter
from rose.runtime.coserving.agent import AgentSpec, DeviceAgent
from rose.runtime.coserving.leasing import lease_id_of
from rose.runtime.coserving.page import ArbiterPage
from rose.runtime.notices import AgentReport, DeathWatch
from rose.runtime.rollout.groups import GroupSpec
from rose.runtime.rollout.trajectory import Trajectory
from rose.runtime.training.reporting import StepReport, StepTimes, step_event, verdicts
from rose.runtime.training.train_time import TrainTime

if TYPE_CHECKING:
    from rose.runtime.training.trainer import StepStats

#: Rollouts and what feeds them give way to serving and its clients on the host's cores, ...
BACKGROUND_NICE = 10
#: ... and the trainer to all of them: a longer update delays weights, a turn that waits leaves engines idle.
TRAINER_NICE = 19
#: How long requests in flight may take to finish when a run stops.
_DRAIN_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where an actor writes and runs. `cores` empty: anywhere."""

    ledger: Path
    run_id: str
    anchor: Anchor
    host: str = ""
    cores: Sequence[int] = ()
    nice: int = 0

    def take(self) -> None:
        """Keep this process to the place's cores and niceness."""
        if self.cores:
            os.sched_setaffinity(0, self.cores)
        # Not `os.nice`, which adds to what the process that started this one has.
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, self.nice)

    def settle(self, writer: str) -> LedgerWriter:
        """Take the place in this process and open its ledger writer."""
        self.take()
        return LedgerWriter.open(self.ledger, writer_name(self.host, writer), self.run_id)


def writer_name(host: str, writer: str) -> str:
    """The ledger writer of a part of the deployment; `host` keeps those of several hosts apart."""
    return f"{host}.{writer}" if host else writer


class Pinged:
    """A part that is asked whether it is there."""

    def ping(self) -> None:
        """Nothing to say: that it answers is enough."""


class AgentActor:
    """A device's agent. Its rollout engine dies with this process; the serving engine is none of it."""

    def __init__(self, place: Place, spec: AgentSpec) -> None:
        self._writer = place.settle(f"agent-{spec.device.id}")
        self._watch = DeathWatch(self._writer.record)
        self._agent = DeviceAgent(spec, self._watch.record, lambda: self._writer.failure)

    def start(self) -> None:
        self._agent.start()

    def sync(self, version: int, url: str, step: int | None) -> tuple[bool, int, int, str | None]:
        """(ok, wire bytes, dense bytes, reason) of the sync; a device without rollouts is up to date."""
        event = self._agent.sync(version, url, None, step)
        return (True, 0, 0, None) if event is None else (event.ok, event.wire_bytes, event.dense_bytes, event.reason)

    def check(self) -> AgentReport:
        """How the device is. Raises what its agent raises that cannot go on."""
        return AgentReport(self._agent.check(), self._watch.deaths)

    def stop(self) -> None:
        self._agent.stop()
        self._writer.close()


class GatewayActor(Pinged):
    """The rollout gateway in a process of its own."""

    def __init__(self, place: Place, host: str, port: int, token: str | None, policy: str) -> None:
        from rose.runtime.scheduling.gateway import Gateway

        # The gateway writes no events: what it decides is in the turns and leases that others record.
        place.take()
        self._gateway = Gateway(host, port, token, policy)

    async def start(self) -> None:
        await self._gateway.start()

    async def stop(self) -> None:
        await self._gateway.stop()


class RolloutActor(Pinged):
    """Environment workers: plays groups of trajectories against the gateway."""

    def __init__(
        self, place: Place, index: int, task: TaskConfig, gateway_url: str, token: str | None, temperature: float
    ) -> None:
        self._writer = place.settle(f"rollout-{index}")
        # Loaded while engines start, not when the first of them wait for turns.
        import rose.runtime.rollout.agent
        import rose.runtime.rollout.frozenlake
        import rose.runtime.scheduling.client  # noqa: F401

        self._task = task
        #: First come, first served: trajectories of a step begin before those of the next one.
        self._room = asyncio.Semaphore(task.trajectories_max)
        self._gateway_url, self._token, self._temperature = gateway_url, token, temperature
        self._playing: set[asyncio.Task[list[Trajectory]]] = set()
        self._finished: dict[int, int] = {}

    async def play(self, step: int, version: int, version_min: int, groups: Sequence[GroupSpec]) -> list[Trajectory]:
        """All trajectories of the groups, each ended; the list is in the order of the groups. `version` is the one that
        will be trained on them, `version_min` the oldest that a turn may be generated with. Steps may be played at
        once."""
        self._finished[step] = 0
        playing = asyncio.create_task(self._play(step, version, version_min, groups))
        self._playing.add(playing)
        try:
            return await playing
        finally:
            self._playing.discard(playing)
            self._finished.pop(step)

    async def _play(self, step: int, version: int, version_min: int, groups: Sequence[GroupSpec]) -> list[Trajectory]:
        import aiohttp

        from rose.runtime.rollout.agent import run_trajectory
        from rose.runtime.rollout.frozenlake import Episode
        from rose.runtime.rollout.sampling import sampling_params
        from rose.runtime.scheduling.client import GenerateClient

        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None, sock_connect=5.0)
        ) as session:
            generate = GenerateClient(
                session,
                self._gateway_url,
                sampling_params(self._temperature),
                self._token,
                version_min=version_min,
            )

            async def one(group: GroupSpec, number: int) -> Trajectory:
                async with self._room:
                    trajectory = await run_trajectory(
                        Episode(self._task, seed=group.map_seed, slip_seed=number),
                        generate,
                        trajectory_id=f"{group.group_id}-{number}",
                        group_id=group.group_id,
                        step=step,
                        trainer_version=lambda: version,
                        record=self._writer.record,
                    )
                self._finished[step] += 1
                return trajectory

            return list(await asyncio.gather(*(one(group, n) for group in groups for n in range(group.size))))

    async def progress(self) -> dict[int, int]:
        """Trajectories that have ended, by the steps that are played."""
        return dict(self._finished)

    async def stop(self) -> None:
        """Give up what is being played and close the books."""
        for playing in self._playing:
            playing.cancel()
        self._writer.close()


class TrainerActor(Pinged):
    """The trainer and its weight store. Writes its time to the page of the device it runs on: a GPU, or, with `gpu`
    None, the host's cores.

    After each update the trainer's state lies beside the store: one that is started again goes on from there.
    """

    def __init__(
        self,
        place: Place,
        checkpoint: str,
        training: TrainingConfig,
        folder: Path,
        page: Path,
        gpu: int | None = None,
    ) -> None:
        os.environ["OMP_NUM_THREADS"] = str(training.threads)
        self._writer = place.settle("trainer")
        self._train_time = TrainTime(page)
        if gpu is None:
            from rose.runtime.engines.cpu import install

            install()
        import torch

        from rose.runtime.training.trainer import Trainer
        from rose.runtime.transfer.publisher import Publisher
        from rose.runtime.transfer.server import StoreServer
        from rose.runtime.transfer.store import VersionStore

        torch.set_num_threads(training.threads)
        self._trainer = Trainer(Path(checkpoint), training, "cpu" if gpu is None else f"cuda:{gpu}")
        self._state = folder.with_name("trainer.pt")
        #: The step of the last update, and what came of it.
        self._last: tuple[int, StepStats] | None = None
        if self._state.exists():
            self._last = self._trainer.resume(self._state)
        self._store = VersionStore(folder)
        self._publisher = Publisher(self._store)
        self._server = StoreServer(self._store).start()

    def publish(self) -> tuple[int, str]:
        """Publish the trainer's weights; returns (version, URL of the store) once they can be fetched.

        Asked again for a version that is published, by a loop that tries an engine again or because this process was
        started again, it only says where they are.
        """
        if self._store.latest() != self._trainer.version:
            self._publisher.publish(self._trainer.version, self._trainer.weights())
        return self._trainer.version, self._server.url

    def update(self, step: int, trajectories: list[Trajectory]) -> StepReport:
        """One policy update; it is recorded by `finish`, once engines are synced. Asked again for a step that it was
        made for already, it is not made again."""
        began = monotonic_ns()
        if self._last is None or self._last[0] != step:
            with self._train_time.span():
                stats = self._trainer.update(trajectories)
                self._last = (step, stats)
                self._trainer.save(self._state, step, stats)
        return StepReport(
            version=self._trainer.version,
            accepted=sum(trajectory.correct for trajectory in trajectories),
            trajectories=len(trajectories),
            loss=self._last[1].loss,
            train_ns=monotonic_ns() - began,
        )

    def finish(
        self,
        step: int,
        trajectories: list[Trajectory],
        rollout_ns: int,
        train_ns: int,
        sync_ns: int,
        total_ns: int,
    ) -> None:
        """Record the step and the verdicts: all of its parts are known now."""
        assert self._last is not None
        assert self._last[0] == step, f"the last update was for step {self._last[0]}, not {step}"
        stats = self._last[1]
        for event in verdicts(stats, trajectories):
            self._writer.record(event)
        times = StepTimes(rollout_ns=rollout_ns, train_ns=train_ns, sync_ns=sync_ns, total_ns=total_ns)
        # With the verdicts before it: the loop goes on, and never asks for this step again.
        self._writer.record(step_event(step, stats, trajectories, times), durable=True)

    def stop(self) -> None:
        self._publisher.wait()
        self._server.stop()
        self._writer.close()


class TrafficActor(Pinged):
    """Replays serving traffic against a serving engine's OpenAI endpoint until it is stopped."""

    def __init__(
        self,
        place: Place,
        *,
        url: str,
        model: str,
        device_id: str,
        engine_id: str,
        page: Path,
        traffic: TrafficConfig,
        serving: ServingConfig,
    ) -> None:
        from rose.runtime.traffic.replay import Replay, Target
        from rose.runtime.traffic.trace import fit, open_trace

        self._writer = place.settle(f"traffic-{device_id}")
        self._page = ArbiterPage(page)
        self._run_id, self._device_id = place.run_id, device_id
        trace = open_trace(traffic)
        assert trace is not None, "traffic 'none' starts no traffic actor"
        self._replay = Replay(
            fit(trace, traffic),
            Target(url=url, model=model, device_id=device_id, engine_id=engine_id),
            serving,
            self._writer.record,
            lease_at=self._lease_at,
            seed=traffic.seed,
            repeat=True,
        )
        self._running: asyncio.Task[object] | None = None

    async def run(self) -> None:
        """Send requests until `stop`."""
        self._running = asyncio.create_task(self._replay.run())
        await self._running

    async def stop(self) -> None:
        """Send no more, wait a little for what is in flight, and close the books."""
        self._replay.stop()
        if self._running is not None:
            await asyncio.wait([self._running], timeout=_DRAIN_S)
            self._running.cancel()
            await asyncio.wait([self._running])
        self._writer.close()

    def _lease_at(self) -> str | None:
        lease = self._page.lease()
        if lease.expires_ns <= monotonic_ns():
            return None
        return lease_id_of(self._run_id, self._device_id, lease.number)
