"""The controller of a fleet, as a named actor on the first host."""

import asyncio
import gc
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from rose.config import FleetConfig
from rose.errors import UserError
from rose.ledger.files.layout import LedgerError
from rose.ledger.writer import LedgerWriter
from rose.runtime import places
from rose.runtime.fleet import BACKGROUND_NICE, writer_name
from rose.runtime.models import models
from rose.runtime.scheduling.messages import Terms
from rose.runtime.service import memory, process
from rose.runtime.service.fabric import GcsWatch
from rose.runtime.service.memory import FleetMemory
from rose.runtime.service.process import STOPPING, Report, log_to
from rose.tokens import of_secret

_AGAIN_S = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ControllerPlan:
    config: FleetConfig
    run_id: str
    port: int
    agent_token: str = field(default="", repr=False)
    host_tokens: dict[str, str] = field(default_factory=dict, repr=False)  # By host: the secret for its events.


class ControllerActor:
    """The controller as a Ray actor. It works in a thread, so that `report` answers at once."""

    def __init__(self, plan: ControllerPlan | str) -> None:
        self._plan = plan = process.load(ControllerPlan, plan)
        self._memory = FleetMemory(plan.config)
        self._host = places.hosts(plan.config)[0]
        self._doing = "starting"
        log = self._memory.folder / "logs" / "controller.log"
        self._say = log_to(log)
        self._loop = uvloop.new_event_loop()
        self._ending = asyncio.Event()
        self._thread = process.start_part("controller", lambda: self._loop.run_until_complete(self._run()), log)

    def report(self) -> Report:
        return Report(doing=self._doing, pid=os.getpid())

    def stop(self, _serving: bool) -> None:
        self._doing = STOPPING
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(10.0)

    def _checkpoint(self, model: str) -> Path:
        return models.resolve(model, Path(self._plan.config.cache), self._say)

    def _give_way(self) -> None:
        try:
            os.sched_setaffinity(0, self._host.cores or os.sched_getaffinity(0))
            os.setpriority(os.PRIO_PROCESS, 0, BACKGROUND_NICE)
        except OSError as error:
            self._say(f"cannot change its cores and niceness: {error}")

    def _terms(self) -> dict[str, Terms]:
        config = None
        try:
            if (remembered := self._memory.read()) is not None:
                config = memory.recorded(remembered)
        except memory.MemoryUnreadableError as error:
            self._say(f"uses the settings with which the fleet was started: {error}")
        return memory.terms(config or self._plan.config)

    def _ray_fault(self) -> Callable[[], str | None]:
        import ray

        if not ray.is_initialized():  # A test without Ray.
            return lambda: None
        return GcsWatch(
            ray.get_runtime_context().gcs_address, places.ledger_host(self._plan.config) or "this host"
        ).fault

    async def _run(self) -> None:
        from rose.runtime.scheduling.gateway import Gateway

        plan, ledger = self._plan, places.ledger(self._plan.config)
        name = writer_name(places.ledger_host(plan.config), "controller")
        self._give_way()
        config, ray_fault = plan.config.gateway, self._ray_fault()
        host_tokens = [of_secret(host, token, ("append",), (f"{host}.*",)) for host, token in plan.host_tokens.items()]
        while not self._ending.is_set():
            gateway: Gateway | None = None
            writer: LedgerWriter | None = None
            try:
                writer = LedgerWriter.open(ledger, name, plan.run_id)
                gateway = Gateway(
                    config.host,
                    plan.port,
                    config.token,
                    plan.config.coserving.policy,
                    models=[rollout.model for rollout in plan.config.rollouts.values()],
                    state=self._memory.controller,
                    writer=writer,
                    fleet_run_id=plan.run_id,
                    agent_token=plan.agent_token,
                    tokens_file=config.tokens,
                    host_tokens=host_tokens,
                    # Without a token every local user could read it.
                    ledger=ledger if config.token or config.tokens else None,
                    devices=places.hosts_by_device(plan.config),
                    origins=places.origin_rules(plan.config),
                    checkpoint=self._checkpoint,
                )
                gateway.controller.ray_fault = ray_fault
                gateway.controller.read_terms = self._terms
                await gateway.start()
                # Python's default thresholds would spend a tenth of each turn on garbage collection.
                gc.freeze()
                gc.set_threshold(20_000, 50, 100)
                self._doing = ""
                self._say(f"listening on {config.host}:{plan.port}")
                await self._ending.wait()
            except (OSError, UserError) as error:
                self._doing = f"cannot listen on {config.host}:{plan.port}: {error}"
                self._say(self._doing)
                await asyncio.sleep(_AGAIN_S)
            finally:
                if gateway is not None:
                    await gateway.stop()
                if writer is not None:
                    try:
                        writer.close()
                    except LedgerError as error:
                        self._say(str(error))
