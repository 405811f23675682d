"""A deployment on Ray: start it, run the RL loop beside the serving traffic, watch it, stop it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import psutil

from rose.clock import Anchor
from rose.config import FleetConfig
from rose.events import Run
from rose.ledger.layout import LedgerError
from rose.ledger.upkeep import jobs
from rose.ledger.upkeep.scheduler import Scheduler
from rose.ledger.writer import LedgerWriter
from rose.runtime import actors, preflight, run_folder
from rose.runtime.actors import BACKGROUND_NICE, TRAINER_NICE, Place
from rose.runtime.cluster import Cluster
from rose.runtime.coserving.agent import AgentSpec
from rose.runtime.coserving.lease_file import LeaseFile
from rose.runtime.engines import leftovers, models
from rose.runtime.engines.forkserver import ForkServer
from rose.runtime.engines.ports import free_port
from rose.runtime.fleet import FleetPlan, recorded_config
from rose.runtime.memory_plan import MemoryPlan, trainer_device
from rose.runtime.notices import Notices
from rose.runtime.rl_loop import LoopParts, RlLoop
from rose.runtime.scheduling.client import ControlClient
from rose.runtime.serving import ServingEngines
from rose.runtime.supervision import Part, Supervisor
from rose.runtime.traffic.trace import FittedTrace, fit, open_trace
from rose.runtime.training import warm_start
from rose.runtime.training.reporting import StepReport

_STOP_TIMEOUT_S = 30.0


@dataclass(slots=True)
class Outcome:
    """How a run ended. `stopped` says that the user or the time limit ended it before its last step."""

    run_id: str
    steps: list[StepReport] = field(default_factory=list)
    stopped: bool = False


@dataclass(slots=True)
class _Parts:
    """What runs, as far as it was started."""

    serving: ServingEngines | None = None
    agents: list[Part] = field(default_factory=list)
    gateway: Part | None = None
    trainer: Part | None = None
    rollouts: list[Part] = field(default_factory=list)
    traffic: list[Part] = field(default_factory=list)
    fork_server: ForkServer | None = None


class Deployment:
    """`run()` does everything, from checks to a stopped fleet. `request_stop()` may be called from a signal handler.

    Raises PreflightError before anything was started, DeploymentError or EngineError when a part failed to start or
    died too often; whatever was started is stopped first, and the ledger holds what happened until then.
    """

    def __init__(self, config: FleetConfig, say: Callable[[str], None]) -> None:
        self._config = config
        self._recorded_config = recorded_config(config)
        self._say = say
        self._run_id = f"{config.name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
        self._folder = run_folder.path(self._run_id)
        self._logs = Path(config.ledger).expanduser().resolve() / "logs" / self._run_id
        self._anchor = Anchor.take()
        self._parts = _Parts()
        self._cluster = Cluster()
        self._supervisor = Supervisor(self._cluster, say)
        self._stop = False
        self._upkeep_ends = False
        self._notices = Notices(say)
        self._fitted: FittedTrace | None = None
        #: Bytes that were free on GPUs before anything was started, by device id.
        self._free_bytes: dict[str, int] = {}

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
        for orphan in run_folder.remove_orphans(self._folder.parent):
            self._say(f"removed {orphan}, which a run that was killed had left")
        if count := leftovers.remove_unused():
            self._say(f"removed {count} files of shared memory that killed engines had left")
        trace = open_trace(self._config.traffic)
        self._fitted = None if trace is None else fit(trace, self._config.traffic)
        outcome = Outcome(self._run_id)
        serving_model = models.resolve(self._config.serving.model, self._cache, self._progress)
        rollout_model = self._rollout_model()
        memory = MemoryPlan(config=self._config, serving_model=serving_model, rollout_model=rollout_model)
        self._free_bytes = preflight.check_gpus(memory)
        for notice in preflight.notices(memory):
            self._say(notice)
        # Everything that is not serving stays off the serving devices' cores, Ray's own processes included.
        os.sched_setaffinity(0, self._host_cores())
        name = actors.writer_name(self._config.host, "deployment")
        with (
            run_folder.claim(self._folder, self._logs),
            LedgerWriter.open(self._ledger, name, self._run_id) as writer,
        ):
            writer.record(self._run_event("started"))
            todo = jobs.ledger_jobs(jobs.Settings())
            upkeep = Scheduler(self._ledger, todo, self._say_failed)
            upkeep.start()
            try:
                loop = self._start(serving_model, rollout_model)
                if self._config.seconds_max is not None:
                    loop.deadline = time.monotonic() + self._config.seconds_max
                loop.run(outcome.steps.append)
            except KeyboardInterrupt:
                outcome.stopped = True
            except BaseException as error:
                writer.record(self._run_event("failed", f"{type(error).__name__}: {error}"))
                raise
            finally:
                self._upkeep_ends = True
                upkeep.stop()
                self._upkeep_ends = False
                self._stop_all(writer)
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

    def _start(self, serving_model: Path, rollout_model: Path) -> RlLoop:
        # It loads SGLang while Ray starts, once for all engines.
        fork_server = self._start_fork_server()
        self._say("starting Ray")
        self._cluster.start()
        parts, config = self._parts, self._config
        port = config.gateway.port or free_port(config.gateway.host)
        # What listens everywhere is reached here by loopback.
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(config.gateway.host, config.gateway.host)  # noqa: S104
        url = f"http://{host}:{port}"
        plan = FleetPlan(
            config=config,
            run_id=self._run_id,
            anchor=self._anchor,
            folder=self._folder,
            logs=self._logs,
            serving_model=serving_model,
            rollout_model=rollout_model,
            gateway_url=url,
            fork_server=fork_server,
            free_bytes=self._free_bytes,
        )
        serving = {device.id: plan.serving(device) for device in config.device}
        devices = [device for device in serving.values() if device is not None]
        parts.serving = ServingEngines(devices, say=self._say)
        specs = [plan.agent_spec(device, serving[device.id]) for device in config.device]
        for device in serving.values():
            if device is not None:
                what = "is attached to" if device.spec is None else "will answer"
                self._say(f"serving on {device.device_id} {what} at {device.url}")
        self._say(f"starting {preflight.engines_started(config)} SGLang engines on {len(specs)} devices")
        parts.serving.launch()
        parts.gateway = self._part("the gateway", lambda _: self._spawn_gateway(port), begin="start")
        self._start_agents([spec for spec in specs if not plan.starts_after_serving(spec.device)])
        parts.trainer = self._part("the trainer", lambda _: self._spawn_trainer(rollout_model, plan))
        for index in range(config.task.workers):
            make = partial(self._spawn_rollouts, index, url)
            parts.rollouts.append(self._part(f"rollout worker {index}", make, watch="progress"))
        self._supervisor.wait_begun([parts.gateway], self._tend)
        self._say(f"rollout gateway at {url}")
        parts.serving.wait_ready(self._tend)
        later = [spec for spec in specs if plan.starts_after_serving(spec.device)]
        if later:
            names = ", ".join(spec.device.id for spec in later)
            self._say(f"serving answers; starting rollout engines beside it on {names}")
        self._start_agents(later)
        self._supervisor.wait_begun(parts.agents, self._tend)
        parts.serving.attach(self._tend)
        loop = RlLoop(
            run_id=self._run_id,
            training=config.training,
            parts=LoopParts(
                agents=parts.agents,
                trainer=parts.trainer,
                rollouts=parts.rollouts,
                gateway=ControlClient(url, config.gateway.token),
            ),
            supervisor=self._supervisor,
            say=self._say,
            tend=self._tend,
        )
        loop.publish_first()
        for number, spec in enumerate(spec for spec in specs if spec.serving_url is not None):
            if config.traffic.trace != "none":
                make = partial(self._spawn_traffic, spec, number)
                parts.traffic.append(self._part(f"the traffic on {spec.device.id}", make, begin="run"))
        # Steps begin when all is there: what still loads would take the host's cores from the first rollouts.
        calls = [self._supervisor.call(part, "ping") for part in (*parts.rollouts, *parts.traffic)]
        self._supervisor.wait(calls, self._tend)
        return loop

    def _start_agents(self, specs: list[AgentSpec]) -> None:
        for spec in specs:
            make = partial(self._spawn_agent, spec)
            self._parts.agents.append(self._part(f"the agent of {spec.device.id}", make, begin="start", watch="check"))

    def _start_fork_server(self) -> Path | None:
        """Where engines on CPU cores are forked from; None if there are none, or it cannot be had: each then loads
        SGLang by itself."""
        if all(device.gpu is not None for device in self._config.device):
            return None
        try:
            server = ForkServer.start(self._folder / "engines", self._logs / "forkserver.log")
        except OSError as error:
            self._say(f"engines start one by one, which takes longer: {error}")
            return None
        self._parts.fork_server = server
        return server.path

    def _part(self, name: str, make: Callable[[int], Any], *, begin: str | None = None, watch: str = "ping") -> Part:
        return self._supervisor.start(Part(name, make, begin, watch))

    # Each is called again with the same arguments if the part died; the number is how often it was started before.

    def _spawn_gateway(self, port: int) -> Any:
        config = self._config
        place = self._place(BACKGROUND_NICE)
        gateway = config.gateway
        return self._cluster.spawn(
            actors.GatewayActor, place, gateway.host, port, gateway.token, config.coserving.policy
        )

    def _spawn_agent(self, spec: AgentSpec, _restarts: int) -> Any:
        # It is asked how it is and told of versions while it starts, and stopped whatever it does.
        return self._cluster.spawn(actors.AgentActor, self._place(), spec, threads=4)

    def _spawn_trainer(self, model: Path, plan: FleetPlan) -> Any:
        device = trainer_device(self._config)
        return self._cluster.spawn(
            actors.TrainerActor,
            self._place(TRAINER_NICE),
            str(model),
            self._config.training,
            self._folder / "store",
            plan.page(device),
            device.gpu,
        )

    def _spawn_rollouts(self, index: int, url: str, _restarts: int) -> Any:
        config = self._config
        return self._cluster.spawn(
            actors.RolloutActor,
            self._place(BACKGROUND_NICE),
            index,
            config.task,
            url,
            config.gateway.token,
            config.training.temperature,
        )

    def _spawn_traffic(self, spec: AgentSpec, number: int, restarts: int) -> Any:
        """Replay the trace against a serving device, with other prompts on each and each time."""
        config = self._config
        assert self._parts.serving is not None
        seed = config.traffic.seed + number + 1_000 * restarts
        return self._cluster.spawn(
            actors.TrafficActor,
            self._place(),
            url=self._parts.serving.url(spec.device.id),
            model=config.serving.model,
            device_id=spec.device.id,
            engine_id=spec.serving_engine_id,
            page=spec.page,
            traffic=config.traffic.model_copy(update={"seed": seed}),
            serving=config.serving,
        )

    # ------------------------------------------------------------------ watch and stop

    def _tend(self) -> None:
        """Called while anything is waited for: ends the run if it was asked to or serving is gone, and says which
        engines died and what lending waits for."""
        if self._stop:
            raise KeyboardInterrupt
        if self._parts.serving is not None:
            self._parts.serving.check()
        self._notices.look([part.report for part in self._parts.agents])

    def _stop_all(self, writer: LedgerWriter) -> None:
        """Stop in the order that leaves the ledger whole: traffic, rollouts, engines with their accounts, Ray; serving,
        which nobody needs any more, at the very end."""
        parts = self._parts
        if self._cluster.running:
            self._say("stopping")
            alone = [part for part in (parts.trainer, parts.gateway) if part is not None]
            for group in (parts.traffic, parts.rollouts, parts.agents, alone):
                calls = [part.actor.stop.remote() for part in group if part.again_at is None]
                self._cluster.settle(calls, _STOP_TIMEOUT_S)
            self._cluster.stop()
        if parts.serving is not None:
            parts.serving.stop()
        if parts.fork_server is not None:
            parts.fork_server.stop()
        # An agent that died a moment ago was not there to end its lease.
        for device in self._config.device:
            for event in LeaseFile(self._folder / device.id / "page", self._run_id).read().completed():
                with suppress(LedgerError):  # It waits in the writer's queue.
                    writer.record(event)
        with suppress(OSError):
            run_folder.remove(self._folder)

    def _run_event(self, action: Literal["started", "ended", "failed"], reason: str | None = None) -> Run:
        fitted = self._fitted
        return Run(
            action=action,
            name=self._config.name,
            config_json=self._recorded_config,
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
