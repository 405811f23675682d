"""A deployment on Ray: start it, run the RL loop beside the serving traffic, watch it, stop it."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil

from rose.clock import Anchor, monotonic_ns
from rose.config import FleetConfig
from rose.events import Run
from rose.ledger.upkeep import jobs
from rose.ledger.upkeep.scheduler import Scheduler
from rose.ledger.writer import LedgerWriter
from rose.runtime import actors, preflight
from rose.runtime.actors import BACKGROUND_NICE, GroupSpec, Place, StepReport
from rose.runtime.cluster import Cluster, DeploymentError
from rose.runtime.coserving.agent import AgentSpec
from rose.runtime.engines import models
from rose.runtime.engines.sglang import free_port
from rose.runtime.fleet import FleetPlan
from rose.runtime.rollout.trajectory import Trajectory
from rose.runtime.scheduling.client import ControlClient
from rose.runtime.scheduling.messages import StepRequest
from rose.runtime.traffic.trace import FittedTrace, fit, open_trace
from rose.runtime.training import warm_start

_PROGRESS_S = 5.0
_STOP_TIMEOUT_S = 30.0
#: Before any step was measured: how long rollouts are expected to want a borrowed device.
_FIRST_STEP_NS = 20_000_000_000


@dataclass(slots=True)
class Outcome:
    """How a run ended. `stopped` says that the user or the time limit ended it before its last step."""

    run_id: str
    steps: list[StepReport] = field(default_factory=list)
    stopped: bool = False


@dataclass(slots=True)
class _Parts:
    """Ray actor handles, as far as they were started."""

    agents: dict[str, Any] = field(default_factory=dict)
    gateway: Any = None
    trainer: Any = None
    rollouts: list[Any] = field(default_factory=list)
    traffic: list[Any] = field(default_factory=list)


class Deployment:
    """`run()` does everything, from checks to a stopped fleet. `request_stop()` may be called from a signal handler.

    Raises PreflightError before anything was started, DeploymentError or EngineError when a part failed; whatever
    was started is stopped first, and the ledger holds what happened until then.
    """

    def __init__(self, config: FleetConfig, say: Callable[[str], None]) -> None:
        self._config = config
        self._say = say
        self._run_id = f"{config.name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
        self._folder = preflight.shared_memory_folder(self._run_id)
        self._logs = Path(config.ledger).expanduser().resolve() / "logs" / self._run_id
        self._anchor = Anchor.take()
        self._parts = _Parts()
        self._cluster = Cluster(lambda: self._stop)
        self._stop = False
        self._upkeep_ends = False
        #: Why devices lend nothing although they could, as last said.
        self._ledger_failures: set[str] = set()
        self._deadline: float | None = None
        self._traffic_done: list[Any] = []
        self._store_url = ""
        self._fitted: FittedTrace | None = None
        self._rollout_ns = 0

    @property
    def run_id(self) -> str:
        return self._run_id

    def request_stop(self) -> None:
        """Ask the run to stop at the next opportunity, at most a second away."""
        self._stop = True

    def _progress(self, text: str) -> None:
        """Progress of something that cannot be interrupted from outside: it ends here if the user asked for it."""
        self._say(text)
        if self._stop:
            raise KeyboardInterrupt

    def run(self) -> Outcome:
        preflight.check(self._config)
        trace = open_trace(self._config.traffic)
        self._fitted = None if trace is None else fit(trace, self._config.traffic)
        outcome = Outcome(self._run_id)
        serving_model = models.resolve(self._config.serving.model, self._cache, self._progress)
        rollout_model = self._rollout_model()
        # Everything that is not serving stays off the serving devices' cores, Ray's own processes included.
        os.sched_setaffinity(0, self._host_cores())
        name = actors.writer_name(self._config.host, "deployment")
        with LedgerWriter.open(self._ledger, name, self._run_id) as writer:
            writer.record(self._run_event("started"))
            todo = jobs.ledger_jobs(jobs.Settings())
            upkeep = Scheduler(self._ledger, todo, self._say_failed)
            upkeep.start()
            try:
                self._start(serving_model, rollout_model)
                self._loop(outcome)
            except KeyboardInterrupt:
                outcome.stopped = True
            except BaseException as error:
                writer.record(self._run_event("failed", f"{type(error).__name__}: {error}"))
                raise
            finally:
                self._upkeep_ends = True
                upkeep.stop()
                self._upkeep_ends = False
                self._stop_all()
            writer.record(self._run_event("ended", "stopped early" if outcome.stopped else None))
        for job in todo:
            if job.name in ("compact", "roll-up"):
                self._say_failed(jobs.run_job(self._ledger, job))
        return outcome

    def _say_failed(self, run: jobs.JobRun) -> None:
        # One that was stopped with the run is made up for by the last one.
        if run.status == "failed" and not self._upkeep_ends:
            self._say(run.line())

    # ------------------------------------------------------------------ where things are

    @property
    def _ledger(self) -> Path:
        return self._config.ledger.expanduser().resolve()

    @property
    def _cache(self) -> Path:
        return self._config.cache.expanduser()

    def _host_cores(self) -> set[int]:
        available = os.sched_getaffinity(0)
        serving = {core for device in self._config.device if device.pool == "serving" for core in device.cores}
        return (available - serving) or available

    def _place(self, nice: int = 0) -> Place:
        return Place(
            ledger=self._ledger,
            host=self._config.host,
            run_id=self._run_id,
            anchor=self._anchor,
            cores=sorted(self._host_cores()),
            nice=nice,
        )

    def _rollout_model(self) -> Path:
        config = self._config
        if config.rollout.model == "frozenlake-tiny":
            return warm_start.resolve(config.task, self._cache, self._progress, seed=config.training.seed)
        return models.resolve(config.rollout.model, self._cache, self._progress)

    # ------------------------------------------------------------------ start

    def _start(self, serving_model: Path, rollout_model: Path) -> None:
        self._say("starting Ray")
        self._cluster.start()
        spawn = self._cluster.spawn
        parts, config = self._parts, self._config
        port = config.gateway.port or free_port(config.gateway.host)
        url = f"http://{config.gateway.host}:{port}"
        parts.gateway = spawn(
            actors.GatewayActor, self._place(BACKGROUND_NICE), config.gateway.host, port, config.gateway.token
        )
        self._wait([parts.gateway.start.remote()])
        self._gateway = ControlClient(url, config.gateway.token)
        self._say(f"rollout gateway at {url}")
        plan = FleetPlan(
            config=config,
            run_id=self._run_id,
            anchor=self._anchor,
            folder=self._folder,
            logs=self._logs,
            serving_model=serving_model,
            rollout_model=rollout_model,
            gateway_url=url,
        )
        specs: list[AgentSpec] = []
        for device in config.device:
            spec = plan.agent_spec(device)
            if spec.serving is not None:
                self._say(f"serving on {device.id} will answer at http://127.0.0.1:{spec.serving.port}")
            specs.append(spec)
            parts.agents[device.id] = spawn(actors.AgentActor, self._place(), spec, threads=2)
        self._say(f"starting {self._engine_count()} SGLang engines on {len(config.device)} devices (about a minute)")
        starting = [agent.start.remote() for agent in parts.agents.values()]
        trainer_device = next(device for device in config.device if device.pool == "rollout")
        parts.trainer = spawn(
            actors.TrainerActor,
            self._place(BACKGROUND_NICE),
            str(rollout_model),
            config.training,
            self._folder / "store",
            plan.page(trainer_device),
        )
        parts.rollouts = [
            spawn(
                actors.RolloutActor,
                self._place(BACKGROUND_NICE),
                index,
                config.task,
                url,
                config.gateway.token,
                config.training.temperature,
            )
            for index in range(config.task.workers)
        ]
        self._wait(starting)
        version, self._store_url = self._wait([parts.trainer.publish.remote()])[0]
        assert version == 0, "engines start from the checkpoint, which is version 0"
        self._start_traffic(specs)

    def _start_traffic(self, specs: Sequence[AgentSpec]) -> None:
        """Replay the trace against each serving device, with other prompts on each."""
        config = self._config
        if config.traffic.trace == "none":
            return
        spawn = self._cluster.spawn
        serving = [(spec, spec.serving) for spec in specs if spec.serving is not None]
        for number, (spec, engine) in enumerate(serving):
            actor = spawn(
                actors.TrafficActor,
                self._place(),
                url=f"http://127.0.0.1:{engine.port}",
                model=config.serving.model,
                device_id=spec.device.id,
                engine_id=engine.engine_id,
                page=spec.page,
                traffic=config.traffic.model_copy(update={"seed": config.traffic.seed + number}),
                serving=config.serving,
            )
            self._parts.traffic.append(actor)
            self._traffic_done.append(actor.run.remote())

    def _engine_count(self) -> int:
        return sum(1 + (d.pool == "serving" and self._config.coserving.enabled) for d in self._config.device)

    # ------------------------------------------------------------------ the RL loop

    def _loop(self, outcome: Outcome) -> None:
        config = self._config
        if config.seconds_max is not None:
            self._deadline = time.monotonic() + config.seconds_max
        expected_ns = _FIRST_STEP_NS
        for step in range(config.training.steps):
            if self._stopping():
                break
            report = self._run_step(step, step, expected_ns)
            if report is None:
                break
            outcome.steps.append(report)
            expected_ns = self._rollout_ns
        outcome.stopped = len(outcome.steps) < config.training.steps

    def _run_step(self, step: int, version: int, expected_ns: int) -> StepReport | None:
        """Rollouts on all devices, one update, weights to every engine. None if the run is to stop."""
        parts, training = self._parts, self._config.training
        began = monotonic_ns()
        self._gateway.set_step(StepRequest(step=step, open=True, version_min=max(0, version - training.staleness_max)))
        self._each_agent("open_step", step, expected_ns)
        groups = [
            GroupSpec(
                group_id=f"{self._run_id}-s{step}-g{index}",
                map_seed=training.seed * 1_000_003 + step * 1_009 + index,
                size=training.group_size,
            )
            for index in range(training.groups_per_step)
        ]
        share = len(parts.rollouts)
        playing = [actor.play.remote(step, version, groups[index::share]) for index, actor in enumerate(parts.rollouts)]
        played = self._watch(playing, step)
        self._each_agent("close_step")
        self._gateway.set_step(StepRequest(step=step, open=False, version_min=0))
        if played is None:
            return None
        trajectories = [trajectory for part in played for trajectory in part]
        rolled = monotonic_ns()
        self._rollout_ns = rolled - began
        report: StepReport = self._wait([parts.trainer.update.remote(step, trajectories)])[0]
        trained = monotonic_ns()
        sync = self._sync(step)
        synced = monotonic_ns()
        self._wait(
            [parts.trainer.finish.remote(step, rolled - began, trained - rolled, synced - trained, synced - began)]
        )
        self._say(_line(step, training.steps, report, trajectories, rolled - began, trained - rolled, sync))
        return report

    def _sync(self, step: int) -> str:
        version, url = self._wait([self._parts.trainer.publish.remote()])[0]
        results = self._wait([agent.sync.remote(version, url, step) for agent in self._parts.agents.values()])
        failed = [reason for ok, _, _, reason in results if not ok]
        if failed:
            raise DeploymentError(f"an engine could not be brought to version {version}: {'; '.join(failed)}")
        wire = sum(wire for _, wire, _, _ in results)
        dense = sum(dense for _, _, dense, _ in results)
        return f"v{version} in {wire / 1024:.0f} KiB ({dense / max(1, wire):.0f}x smaller than dense)"

    def _watch(self, playing: Sequence[Any], step: int) -> list[list[Trajectory]] | None:
        """Wait for the rollouts of a step, with progress; None if the run is to stop."""
        total = self._config.training.groups_per_step * self._config.training.group_size
        said = time.monotonic()
        while len(self._cluster.poll(playing)) < len(playing):
            self._check()
            if self._stopping():
                return None
            if time.monotonic() - said > _PROGRESS_S:
                said = time.monotonic()
                done = sum(self._wait([actor.progress.remote() for actor in self._parts.rollouts]))
                self._say(f"step {step + 1}: {done} of {total} trajectories")
        return self._wait(playing)

    # ------------------------------------------------------------------ watch and stop

    def _stopping(self) -> bool:
        return self._stop or (self._deadline is not None and time.monotonic() > self._deadline)

    def _check(self) -> None:
        """Raises what went wrong in a part that nobody is waiting for; says what lending waits for."""
        calls = [agent.check.remote() for agent in self._parts.agents.values()]
        ended = self._cluster.poll(self._traffic_done, timeout_s=0)  # traffic ends by itself only with an error
        self._cluster.results(ended, interruptible=False)
        failures = {why for why in self._cluster.results(calls, interruptible=False) if why is not None}
        if failures != self._ledger_failures:
            self._ledger_failures = failures
            self._say(f"not lending, serving goes on: {'; '.join(sorted(failures))}" if failures else "lending again")

    def _each_agent(self, method: str, *args: object) -> None:
        self._wait([getattr(agent, method).remote(*args) for agent in self._parts.agents.values()])

    def _wait(self, calls: Sequence[Any]) -> list[Any]:
        return self._cluster.results(calls)

    def _stop_all(self) -> None:
        """Stop in the order that leaves the ledger whole: traffic, rollouts, engines with their accounts, Ray."""
        if not self._cluster.running:
            return
        self._say("stopping")
        parts = self._parts
        for group in (parts.traffic, parts.rollouts, list(parts.agents.values()), [parts.trainer, parts.gateway]):
            self._cluster.settle([actor.stop.remote() for actor in group if actor is not None], _STOP_TIMEOUT_S)
        self._cluster.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run_event(self, action: Literal["started", "ended", "failed"], reason: str | None = None) -> Run:
        fitted = self._fitted
        return Run(
            action=action,
            name=self._config.name,
            config_json=self._config.model_dump_json(exclude={"gateway": {"token"}}),
            host_json=json.dumps(
                {
                    "cores": psutil.cpu_count(),
                    "memory_bytes": psutil.virtual_memory().total,
                    "platform": os.uname().machine,
                }
            ),
            tags_json=json.dumps(self._config.tags),
            reason=reason,
            trace=None if fitted is None else fitted.trace.name,
            trace_keep_share=None if fitted is None else fitted.keep_share,
            trace_length_scale=None if fitted is None else fitted.length_scale,
            trace_output_length_scale=None if fitted is None else fitted.output_length_scale,
            trace_time_scale=None if fitted is None else fitted.time_scale,
        )


def _line(
    step: int,
    steps: int,
    report: StepReport,
    trajectories: list[Trajectory],
    rollout_ns: int,
    train_ns: int,
    sync: str,
) -> str:
    tokens = sum(trajectory.output_tokens for trajectory in trajectories)
    return (
        f"step {step + 1}/{steps}: {report.accepted}/{report.trajectories} accepted, {tokens} tokens in "
        f"{rollout_ns / 1e9:.1f} s, update {train_ns / 1e9:.1f} s, {sync}"
    )
