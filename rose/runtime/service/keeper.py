"""Keeps a fleet: places its parts on their hosts, and anew where Ray gave one up; ends them in order.

It is an actor on the first host, and remembers on that host's disk what a fleet run is, so that it may die, and Ray
with it: the next one, under the same name, finds what runs and goes on.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

import psutil

from rose.config import FleetConfig
from rose.errors import UserError
from rose.ledger.layout import LedgerError
from rose.ledger.upkeep import jobs
from rose.ledger.upkeep.scheduler import Scheduler
from rose.ledger.writer import LedgerWriter
from rose.runtime.engines.ports import free_port
from rose.runtime.errors import DeploymentError, PartDiedError
from rose.runtime.fleet import recorded_config, writer_name
from rose.runtime.scheduling.runs.ending import end_runs
from rose.runtime.service import local_ray, places, plan_json, upkeep, vital
from rose.runtime.service.fabric import Fabric, UnreachableError
from rose.runtime.service.logs import log_to
from rose.runtime.service.memory import FleetMemory, KeptElsewhereError, Remembered, check_fits
from rose.runtime.service.parts import STOPPING, FleetState, Part, PartState
from rose.runtime.service.plans import Plans
from rose.runtime.service.recording import fleet_event

KEEPER = "keeper"
_MEMORY = "the memory of the fleet run"
_LOOK_S = 0.5
_ASK_TIMEOUT_S = 5.0
#: Engines are stopped, accounts closed and the last events sent.
_STOP_TIMEOUT_S = 60.0
#: The controller has less to end.
_STOP_REST_TIMEOUT_S = 20.0
_EARLY = "before it had stopped in order"


class Keeper:
    """The actor. All that it does is done by one thread; `state` may be asked at any time."""

    def __init__(
        self,
        config: FleetConfig | str,
        first_address: str | None,
        make_host: dict[str, Any] | None = None,
        lives_with: int | None = None,
        start_id: str | None = None,
        ray_address: str = "",
    ) -> None:
        """`first_address` is where the first host is, if that is known; this actor is there. `make_host` are further
        arguments of the hosts' actors, `ray_address` is that of a cluster that is not the host's own. `lives_with` is
        the process that the fleet ends with, if it does. `start_id` tells one `rose up` from the next: what Ray starts
        again with the same one goes on with what that fleet was told, its end too."""
        config = plan_json.load(FleetConfig, config)
        self._config, self._ray_address = config, ray_address
        self._start_id = start_id or secrets.token_hex(8)
        self._memory = FleetMemory(config)
        self._fabric = Fabric(places.namespace(config))
        first_address = first_address or self._fabric.node_address
        self._plans = Plans(config, self._fabric, self._memory, first_address, make_host or {})
        self._say = log_to(self._memory.logs / "keeper.log")
        self._remembered = Remembered(run_id="")
        self._parts: list[Part] = []
        self._looking, self._remembering = threading.Lock(), threading.Lock()
        self._stopping = threading.Event()
        self._alone = self._ending = self._stopped = self._keep_runs = False
        self._fault = ""
        #: What could not be done in the end.
        self._undone: list[PartState] = []
        self._upkeep: Scheduler | None = None
        self._writer: LedgerWriter | None = None
        self._lives_with: psutil.Process | None = None
        if lives_with is not None:
            try:
                self._lives_with = psutil.Process(lives_with)
            except psutil.NoSuchProcess:
                self._alone = True
        self._thread = vital.start_part("keeper", self._run, self._memory.logs / "keeper.log")

    def state(self) -> FleetState:
        parts = [part.state for part in self._parts] + self._undone
        if self._fault:
            parts = [PartState(name=KEEPER, ready=False, doing=self._fault), *parts]
        return FleetState(
            run_id=self._remembered.run_id,
            url=self._remembered.url,
            parts=parts,
            stopped=self._stopped,
            ending=self._ending or self._stopping.is_set(),
        )

    def config(self) -> str:
        """The configuration that it keeps, without its secret."""
        return recorded_config(self._config)

    def has_token(self, token: str | None) -> bool:
        """Whether that is its secret, which it tells nobody."""
        return secrets.compare_digest((token or "").encode(), (self._config.gateway.token or "").encode())

    def stop(self, keep_runs: bool = False) -> None:
        """Begin to put the fleet down; `state` says how far it is. With `keep_runs` the fleet run does not end: its RL
        runs are kept, and the next start goes on with it. Whoever is started in the place of this one ends it too."""
        with self._remembering:
            if not self._ending:
                self._keep_runs = keep_runs
                self._note_end()
            self._stopping.set()

    def restart(self, name: str) -> None:
        """End the process of a part in order and have it started again, with what is installed there now. Returns once
        it is being started; raises DeploymentError, then too, if it did not end in order. `name`: as in `state`."""
        part = next((part for part in self._parts if part.name == name), None)
        if part is None:
            why = self._fault or "a changed fleet file holds after `rose down --keep-runs` and `rose up`"
            raise DeploymentError(f"the fleet that runs has no {name}: {why}")
        if part.actor is None:
            return
        self._say(f"{name} is started anew")
        part.restarts = True
        try:
            self._fabric.answer(self._call_stop(part, keep=True), _STOP_TIMEOUT_S)
        except (UnreachableError, PartDiedError) as error:
            why = str(error).splitlines()[0]
            raise DeploymentError(f"{name} was ended {_EARLY}, and is started anew: {why}") from None
        finally:
            # Whatever it is still at: once it was told to stop it does nothing else any more.
            with self._looking:
                if not self._stopping.is_set():  # Else it is ended with the fleet.
                    self._start_anew(part)
                part.restarts = False

    def _start_anew(self, part: Part) -> None:
        self._fabric.end(part.actor, again=True)
        # An answer of the process that has ended would pass for one of the new one's.
        part.call = None
        self._change(part, PartState(name=part.name, ready=False, doing="is started anew"))

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        while not self._is_over():
            try:
                if self._memory.is_down(self._start_id):
                    # The one before this died when all was done.
                    self._stopped = True
                    return
                self._begin()
                self._fault = ""
                break
            except (UserError, OSError) as error:
                self._fault = str(error)
                self._say(self._fault)
                self._stopping.wait(5.0)
        while not self._is_over():
            for part in self._parts:
                with self._looking:
                    self._look(part)
            self._stopping.wait(_LOOK_S)
        self._end()
        self._memory.unlock()
        self._stopped = True
        if not self._stopping.is_set():
            local_ray.stop_later(self._memory.folder)

    def _is_over(self) -> bool:
        """Whether it was told to end, or the process that it lives with has ended."""
        if self._lives_with is not None and not self._lives_with.is_running():
            self._alone = True
        if self._alone and not self._stopping.is_set():
            self._say("the process that this fleet lives with has ended")
        return self._alone or self._stopping.is_set()

    def _begin(self) -> None:
        self._lock()
        config, hosts = self._config, places.hosts(self._config)
        with self._remembering:
            remembered = self._remembered = self._memory.begin()
            if remembered.start_id != self._start_id:
                remembered.start_id, remembered.ending, remembered.kept = self._start_id, "", False
        remembered.ray_address = self._ray_address
        remembered.port = config.gateway.port or remembered.port or self._free_port
        many, address = len(hosts) > 1, self._plans.address
        shown = address if many else {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.gateway.host, config.gateway.host)  # noqa: S104
        remembered.url = f"http://[{shown}]:{remembered.port}" if ":" in shown else f"http://{shown}:{remembered.port}"
        remembered.gateway_token = config.gateway.token
        remembered.hosts = [host.name for host in hosts]
        self._memory.write(remembered)
        writer = self._open_writer()
        self._memory.end_former(remembered.run_id, writer.record)
        config_json = config.model_dump_json(exclude={"gateway": {"token"}})
        if not remembered.recorded or config_json != remembered.config_json:
            upkeep.check_archive(config)
            # With another fleet file it goes on as another would: the ledger has the newest.
            reason = "goes on with a changed fleet file" if remembered.recorded else None
            writer.record(fleet_event(config, "started", reason))
            remembered.recorded, remembered.config_json = True, config_json
            self._memory.write(remembered)
        if self._upkeep is None:
            self._upkeep = Scheduler(places.ledger(self._config), upkeep.ledger_jobs(config), self._say_failed)
            self._upkeep.start()
        self._parts = self._plans.parts(remembered)
        if remembered.ending:
            self._say("the fleet was being put down")
            self.stop(remembered.ending == "keep")

    def _lock(self) -> None:
        """The fleet is this keeper's from here on. Raises KeptElsewhereError, and OSError."""
        where = f"the Ray cluster at {self._ray_address}" if self._ray_address else "a Ray of this host's own"
        self._memory.lock(f"process {os.getpid()} on {where}")

    @cached_property
    def _free_port(self) -> int:
        # Once, however often this is tried: it is claimed for as long as this process lives.
        return free_port(self._config.gateway.host)

    # ------------------------------------------------------------------ parts

    def _look(self, part: Part) -> None:
        """Take the answer that has come, ask again, and place anew what is gone for good."""
        try:
            if part.actor is None:
                part.actor = part.place()
            if part.call is None:
                part.call, part.asked_s = part.actor.report.remote(), time.monotonic()
            report = self._fabric.answer(part.call, timeout_s=0.2)
            part.call = None
            part.hear(report)
            if part.state.doing == STOPPING and not part.restarts:
                # Whoever told it to did not come to start it anew.
                self._say(f"{part.name} was stopped, and is started anew")
                self._start_anew(part)
        except UnreachableError as error:
            late_s = time.monotonic() - part.asked_s
            if "answer" not in str(error):
                part.call = None
            if "answer" not in str(error) or late_s > _ASK_TIMEOUT_S:
                here = part.resource in self._fabric.nodes()
                doing = "does not answer, or is being started" if here else f"waits for its Ray node ({part.resource})"
                self._change(part, PartState(name=part.name, ready=False, doing=doing))
        except PartDiedError as error:
            self._say(f"{part.name} is gone and is placed anew: {str(error).splitlines()[0]}")
            part.actor = part.call = None
            self._change(part, PartState(name=part.name, ready=False, doing="is gone, and is placed anew"))
        except Exception as error:
            part.call = None
            self._change(part, PartState(name=part.name, ready=False, doing=f"{type(error).__name__}: {error}"))

    def _change(self, part: Part, state: PartState) -> None:
        if state != part.state:
            self._say(f"{state.name}: {state.doing}")
        part.state = state

    # ------------------------------------------------------------------ the end

    def _end(self) -> None:
        """Hosts first, all at once: their leases, engines and accounts; then the controller,
        once the last events have come. What fails is said, and the rest goes on."""
        try:
            self._lock()
        except KeptElsewhereError as error:
            # What there is to end is that one's.
            self._fault = f"ended nothing: {error}"
            self._say(self._fault)
            return
        except OSError as error:
            self._say(f"ends the fleet without a lock: {error}")
        with self._remembering:
            self._ending = True
            self._note_end()
        if not self._remembered.run_id:
            # What cannot be read, or is of another fleet file, is left as it is.
            self._step(_MEMORY, self._recall)
        self._end_parts()
        if self._upkeep is not None:
            self._step("the ledger's upkeep", self._upkeep.stop)
        if self._remembered.run_id:
            self._end_run()

    def _end_parts(self) -> None:
        if not self._parts:
            self._parts = self._plans.nowhere()
        for part in self._parts:
            if part.actor is None:
                # Whoever was here before may have placed it.
                self._step(part.name, partial(self._find, part))
        hosts = [part for part in self._parts if part.is_host]
        self._finish(hosts, _STOP_TIMEOUT_S)
        for part in self._parts:
            if part not in hosts:
                self._finish([part], _STOP_REST_TIMEOUT_S)

    def _end_run(self) -> None:
        """End the fleet run on record, or keep it for the next start."""
        self._step("the events of the keeper", self._open_writer)
        if self._keep_runs:
            self._step(_MEMORY, self._keep)
        else:
            self._step("the RL runs", self._end_runs)
        if (writer := self._writer) is not None:
            if not self._keep_runs:
                self._step("the event of the end", lambda: writer.record(fleet_event(self._config, "ended")))
            self._step("the events of the keeper", writer.close)
        if not self._keep_runs:
            self._step(_MEMORY, self._memory.forget)

    def _step(self, what: str, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:
            doing = f"not ended in order: {type(error).__name__}: {error}"
            self._say(f"{what}: {doing}")
            self._undone.append(PartState(name=what, ready=False, doing=doing))

    def _note_end(self) -> None:
        """On disk, so that whoever is started in the place of this one ends the fleet too."""
        if self._remembered.run_id:
            self._remembered.ending = "keep" if self._keep_runs else "end"
            try:
                self._memory.write(self._remembered)
            except OSError as error:
                self._say(f"that it is put down is not on disk: {error}")

    def _recall(self) -> None:
        """The fleet run that is to end, where this keeper did not come to begin it."""
        remembered = self._memory.read()
        if remembered is not None:
            check_fits(remembered, self._config)
            self._remembered = remembered

    def _find(self, part: Part) -> None:
        part.actor = self._fabric.find(part.name)

    def _keep(self) -> None:
        self._remembered.kept, self._remembered.ending = True, ""
        self._memory.write(self._remembered)

    def _end_runs(self) -> None:
        run_id = self._remembered.run_id
        if self._writer is None:
            raise LedgerError("the ledger cannot be written, and they are open in it")
        for ended in end_runs(self._memory.folder / run_id, self._writer.record, run_id):
            self._say(f"RL run {ended} is closed")

    def _call_stop(self, part: Part, *, keep: bool) -> Any:
        """`keep`: a host's engines go on without it."""
        if part.actor is None:
            return None
        return part.actor.stop.remote(*([not keep] if part.is_host else []))

    def _finish(self, parts: list[Part], timeout_s: float) -> None:
        """Wait for parts to stop, side by side, and end them: one that is away now too, lest it begin again."""
        calls = []
        for part in parts:
            try:
                calls.append((part, self._call_stop(part, keep=False), ""))
            except Exception as error:
                calls.append((part, None, f"could not be asked to stop: {type(error).__name__}: {error}"))
        began_s = time.monotonic()
        for part, call, fault in calls:
            doing = fault or "stopped"
            if call is not None:
                here = part.resource in self._fabric.nodes()
                left_s = began_s + (timeout_s if here else _ASK_TIMEOUT_S) - time.monotonic()
                try:
                    if undone := self._fabric.answer(call, max(0.0, left_s)):
                        doing = f"stopped, but for {'; '.join(undone)}"
                except (UnreachableError, PartDiedError) as error:
                    ended = f"was ended {_EARLY}" if here else "was not reached, and was not stopped in order"
                    doing = f"{ended}: {str(error).splitlines()[0]}"
                except Exception as error:
                    doing = f"stopped with {type(error).__name__}: {error}"
            if part.actor is not None:
                with suppress(Exception):
                    self._fabric.end(part.actor)
            self._say(f"{part.name} {doing}")
            part.state = PartState(name=part.name, ready=False, doing=doing)

    # ------------------------------------------------------------------ the ledger

    def _open_writer(self) -> LedgerWriter:
        if self._writer is None:
            first, config = places.hosts(self._config)[0], self._config
            name = writer_name(first.name if config.hosts else config.host, "deployment")
            self._writer = LedgerWriter.open(places.make_ledger(self._config), name, self._remembered.run_id)
        return self._writer

    def _say_failed(self, run: jobs.JobRun) -> None:
        if run.status == "failed":
            self._say(run.line())
