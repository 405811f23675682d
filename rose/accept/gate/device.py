"""One device that is shared: its page, the two processes on it, and the account of its time; played round by round."""

from __future__ import annotations

import multiprocessing
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rose.accept.gate.figures import arrivals, slice_error_ns
from rose.accept.gate.messages import (
    PROMPT_TOKENS,
    START,
    Failed,
    Ready,
    RolledOut,
    RollOut,
    Round,
    Serve,
    Setting,
)
from rose.clock import Anchor, monotonic_ns
from rose.events import DeviceSlice, Event
from rose.runtime.coserving.accounts.accountant import Accountant
from rose.runtime.coserving.accounts.slices import slice_time
from rose.runtime.coserving.hooks.gate import LAYERS_AHEAD
from rose.runtime.coserving.leases.leasing import LeaseChange
from rose.runtime.coserving.page import ArbiterPage, Party, SpanRecord
from rose.runtime.policy.kv import KvMemory
from rose.runtime.policy.policies import NAMES
from rose.runtime.policy.slack import Budgets, LeaseTerms

#: Memory is not what this is about: there is room for everything.
KV_TOKENS = 100_000
_MEMORY = KvMemory(
    device_bytes=4 * KV_TOKENS, serving_bytes_per_token=1, rollout_bytes_per_token=1, headroom=0.2, high_watermark=0.5
)
#: So long that no request is ever late: what bounds rollouts here is what they may cost, `_REGRET_SHARE`.
_BUDGETS = Budgets(10_000_000_000, 10_000_000_000)
_REGRET_SHARE = 0.05
#: Between telling the processes of a round and its begin.
_LEAD_NS = 50_000_000
#: How long after a round its processes may still answer: serving ends what it began.
_LATE_S = 5.0
_DRAIN_S = 0.1


class PartyError(Exception):
    """A process of the device failed, ended or hangs. `skip`: it cannot be had here, which is no failure."""

    def __init__(self, why: str, *, skip: bool = False) -> None:
        super().__init__(why)
        self.skip = skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Mode:
    """A way to share the device for a round of `seconds`, 0 to leave it out of a quick run.

    `policy` decides for rollouts, None: none are at work. `served`: whether requests come. `layers_ahead` is for a GPU,
    `idle_class` for cores: as what Linux runs only when nothing else wants the core.
    """

    name: str
    policy: str | None
    seconds: float
    quick_seconds: float = 0.0
    served: bool = True
    layers_ahead: int = LAYERS_AHEAD
    idle_class: bool = False


class Device:
    """Both processes begin to load when it is made. To be closed."""

    def __init__(
        self,
        folder: Path,
        *,
        device: str,
        core: int | None,
        graph: bool = False,
        at_once: bool = True,
        environment: tuple[tuple[str, str], ...] = (),
        idle_environment: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """`environment` is both processes', `idle_environment` the rollouts' beside it. `at_once`: they take to the
        device before `start`."""
        self._page = ArbiterPage.create(folder / "page")
        self._page.set_terms(_BUDGETS, PROMPT_TOKENS, _MEMORY)
        self.anchor = Anchor.take()
        self._began_ns = self._ended_ns = monotonic_ns()
        self._leases: list[LeaseChange] = []
        self.slices: list[DeviceSlice] = []
        self._accountant = Accountant(
            "gate", self._page, self.anchor, self._began_ns, self._record, engine_id=None, leases=self._leases
        )
        #: All spans so far, read beside the accountant.
        self.spans: list[SpanRecord] = []
        self._tails = dict.fromkeys((Party.SERVING, Party.ROLLOUT), 0)
        setting = Setting(
            device=device, page=self._page.path, core=core, graph=False, at_once=at_once, environment=tuple(environment)
        )
        idle = replace(setting, graph=graph, environment=(*environment, *idle_environment))
        self._serving, self._rollout = _Process("serve", setting), _Process("roll_out", idle)
        self.serving: Ready | None = None

    def start(self, deadline_ns: int) -> tuple[Ready, Ready]:
        """Bring serving up, then rollouts, each with the device to itself. Raises PartyError."""
        ready = []
        for process in (self._serving, self._rollout):
            process.tell(START)
            ready.append(self._hear(process, deadline_ns))
        self.serving = ready[0]
        return ready[0], ready[1]

    def play(self, mode: Mode, number: int, seconds: float) -> Round:
        """One round, whose requests come as in any other of this number. Raises PartyError."""
        assert self.serving is not None, "started before"
        lent_ns = monotonic_ns()
        from_ns = lent_ns + _LEAD_NS
        until_ns = from_ns + round(seconds * 1e9)
        deadline_ns = until_ns + round(_LATE_S * 1e9)
        if mode.policy is not None:
            terms = LeaseTerms(
                number=len(self._leases) + 1,
                expires_ns=deadline_ns,
                compute_share=1.0,
                kv_budget_tokens=KV_TOKENS,
                regret_share=_REGRET_SHARE,
                policy=NAMES.index(mode.policy),
            )
            self._page.set_lease(terms)
            self._leases.append(LeaseChange(lent_ns, mode.name, None))
            self._rollout.tell(
                RollOut(layers_ahead=mode.layers_ahead, idle_class=mode.idle_class, from_ns=from_ns, until_ns=until_ns)
            )
        coming = arrivals(number, self.serving.step_ns, from_ns, until_ns) if mode.served else ()
        self._serving.tell(Serve(arrivals=coming, until_ns=until_ns))
        rollout: RolledOut | None = None
        try:
            if mode.policy is not None:
                rollout = self._hear(self._rollout, deadline_ns)
            steps = self._hear(self._serving, deadline_ns)
        finally:
            if mode.policy is not None:
                self._page.set_lease(LeaseTerms())
                self._leases.append(LeaseChange(monotonic_ns(), None, None))
        return Round(mode=mode.name, from_ns=from_ns, until_ns=until_ns, steps=steps, rollout=rollout)

    def account(self) -> dict[str, int]:
        """Close the account: by how many nanoseconds it is wrong, and what it may have missed."""
        self._ended_ns = monotonic_ns()
        self._drain()
        self._accountant.close(self._ended_ns, final=True)
        swept = slice_time(self.spans, self._began_ns, self._ended_ns).by_bucket
        off = [abs(swept[bucket] - sum(getattr(part, f"{bucket}_ns") for part in self.slices)) for bucket in swept]
        return {
            "slice_error_ns": slice_error_ns(self.slices, self._began_ns, self._ended_ns, self.anchor),
            "length_ns": self._ended_ns - self._began_ns,
            "slices": len(self.slices),
            "spans": len(self.spans),
            "spans_lost": self._accountant.lost_spans,
            "late_ns": self._accountant.late_ns,
            "bucket_off_one_sweep_ns": max(off),
        }

    def close(self) -> None:
        """End both processes."""
        for process in (self._serving, self._rollout):
            process.dismiss()
        for process in (self._serving, self._rollout):
            process.end()
        self._page.close()

    def _hear(self, process: _Process, deadline_ns: int) -> Any:
        while (answer := process.hear(_DRAIN_S)) is None:
            self._drain()
            self._accountant.close(monotonic_ns())
            if monotonic_ns() > deadline_ns:
                raise PartyError(f"the process {process.name!r} did not answer in time")
        return answer

    def _drain(self) -> None:
        for party, tail in self._tails.items():
            spans, self._tails[party], _ = self._page.drain(party, tail)
            self.spans += spans

    def _record(self, event: Event, *, durable: bool | None = None) -> None:
        if isinstance(event, DeviceSlice):
            self.slices.append(event)


class _Process:
    """A process on the device, started with torch already loaded."""

    def __init__(self, name: str, setting: Setting) -> None:
        self.name = name
        context = multiprocessing.get_context("forkserver")
        # Loading torch starts nothing on a GPU: what forks from it may still do that.
        context.set_forkserver_preload(["rose.accept.gate.parties"])
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_party, args=(name, theirs, setting), name=name, daemon=True)
        self._process.start()
        theirs.close()

    def tell(self, command: object) -> None:
        """Raises PartyError if it has ended."""
        try:
            self._connection.send(command)
        except OSError:
            # Why it ended may be there still to be read.
            self.hear(0.0)
            raise PartyError(self._ended())

    def hear(self, seconds: float) -> Any:
        """Its answer; None if there is none within `seconds`. Raises PartyError if it failed or has ended."""
        try:
            if not self._connection.poll(seconds):
                return None
            answer = self._connection.recv()
        except (EOFError, OSError):
            raise PartyError(self._ended())
        if isinstance(answer, Failed):
            raise PartyError(f"the process {self.name!r} failed: {answer.why}", skip=answer.absent)
        return answer

    def dismiss(self) -> None:
        """Have it end, if it listens."""
        with suppress(OSError):
            self._connection.send(None)

    def end(self) -> None:
        """Wait a moment for its end, and force it."""
        self._process.join(1.0)
        self._process.kill()

    def _ended(self) -> str:
        self._process.join(1.0)
        return f"the process {self.name!r} ended with exit code {self._process.exitcode}"


def _party(name: str, connection: Connection, setting: Setting) -> None:
    from rose.accept.gate import parties

    getattr(parties, name)(connection, setting)
