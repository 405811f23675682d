"""Tests that serving and rollouts can share a device through the product's gate, page and accounts, without SGLang."""

import os
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rose.accept.peer import Peer, PeerError
from rose.accept.stage import Scope, StageReport
from rose.accept.stages.gate_processes import KV_TOKENS, PROMPT_TOKENS, SETTLING_NS, Ready, RolledOut, Step, make_party
from rose.clock import Anchor, monotonic_ns
from rose.events import BUCKETS, DeviceSlice, Event
from rose.runtime.coserving.accounts.accountant import Accountant
from rose.runtime.coserving.hooks.gate import LAYERS_AHEAD
from rose.runtime.coserving.leases.leasing import LeaseChange
from rose.runtime.coserving.page import ArbiterPage
from rose.runtime.policy.kv import KvMemory
from rose.runtime.policy.policies import NAMES
from rose.runtime.policy.slack import Budgets, LeaseTerms

_MEMORY = KvMemory(
    device_bytes=4 * KV_TOKENS, serving_bytes_per_token=1, rollout_bytes_per_token=1, headroom=0.2, high_watermark=0.5
)
_BUDGETS = Budgets(10_000_000_000, 10_000_000_000)  # Never exceeded: only `_REGRET_SHARE` bounds rollouts.
_REGRET_SHARE = 0.05
LEAD_NS = 50_000_000
LATE_S = 5.0
_CLOSE_S = 0.1
_ROUNDS, _QUICK_ROUNDS = 3, 2
_WARM_UP_S = 0.4
END_S = 3.0  # Reserve for the end of the stage.
_BUSY_SHARE = 0.4
_STEPS_MIN, _STEPS_MAX = 2, 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Mode:
    name: str
    policy: str | None
    seconds: float
    quick_seconds: float
    served: bool = True


ALONE, UNSERVED, YIELD = "alone", "rollouts alone", "yield"
MODES = (
    Mode(name=ALONE, policy=None, seconds=5.0, quick_seconds=0.75),
    Mode(name=UNSERVED, policy="share_all", served=False, seconds=1.2, quick_seconds=0.4),
    Mode(name="ungated", policy="share_all", seconds=2.0, quick_seconds=0.5),
    Mode(name=YIELD, policy="rose", seconds=5.0, quick_seconds=0.75),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    from_ns: int
    until_ns: int
    steps: tuple[Step, ...]
    rollout: RolledOut | None


def measure(scope: Scope, report: StageReport) -> None:
    deadline_ns = monotonic_ns() + round((scope.seconds - END_S) * 1e9)
    core = free_core(report) if scope.gpu is None else None
    seconds = {mode: mode.quick_seconds if scope.quick else mode.seconds for mode in MODES}
    played: dict[str, list[Round]] = {}
    with closing(Device(scope.folder, scope.device, core=core)) as device:
        serving, rollout = device.start(deadline_ns)
        try:
            device.play(MODES[1], 0, _WARM_UP_S)  # The gate learns step times.
            for number in range(_QUICK_ROUNDS if scope.quick else _ROUNDS):
                turn = number % len(MODES)
                for mode in (*MODES[turn:], *MODES[:turn]):
                    one = device.play(mode, number + 1, seconds[mode])
                    played.setdefault(mode.name, []).append(one)
        finally:
            _claim(report, device.account(), played, serving, rollout)


def free_core(report: StageReport) -> int:
    """Return the least busy core, and keep this process off that core unless it has no other core."""
    import psutil

    os.environ["OMP_NUM_THREADS"] = "1"
    cores = sorted(os.sched_getaffinity(0))
    busy = psutil.cpu_percent(interval=0.3, percpu=True)
    core = min(cores, key=lambda core: busy[core] if core < len(busy) else 100.0)
    if len(cores) > 1:
        os.sched_setaffinity(0, set(cores) - {core})
    report.fact("core that both share", core)
    return core


class Device:
    def __init__(self, folder: Path, device: str, *, core: int | None) -> None:
        self.page = ArbiterPage.create(folder / "page")
        self.page.set_terms(_BUDGETS, PROMPT_TOKENS, _MEMORY)
        self._anchor = Anchor.take()
        self._began_ns = monotonic_ns()
        self._leases: list[LeaseChange] = []
        self._slices: list[DeviceSlice] = []
        self._accountant = Accountant(
            "gate", self.page, self._anchor, self._began_ns, self._record, engine_id=None, leases=self._leases
        )
        self.serving, self.rollout = (
            # A fork after loading torch may still use a GPU.
            Peer(name, make_party, name, device, self.page.path, core, start="forkserver")
            for name in ("serving", "rollout")
        )

    def start(self, deadline_ns: int) -> tuple[Ready, Ready]:
        ready: list[Ready] = []
        for process in (self.serving, self.rollout):
            process.tell("start")
            ready.append(self.hear(process, deadline_ns))
        self._step_ns = ready[0].step_ns
        return ready[0], ready[1]

    def play(self, mode: Mode, number: int, seconds: float) -> Round:
        from_ns = monotonic_ns() + LEAD_NS
        until_ns = from_ns + round(seconds * 1e9)
        deadline_ns = until_ns + round(LATE_S * 1e9)
        lent = nullcontext() if mode.policy is None else self.lent(mode.policy, mode.name, deadline_ns)
        due = arrivals(number, self._step_ns, from_ns, until_ns) if mode.served else ()
        rollout = None
        with lent:
            if mode.policy is not None:
                self.rollout.tell("play", from_ns, until_ns)
            self.serving.tell("play", due, until_ns)
            if mode.policy is not None:
                rollout = self.hear(self.rollout, deadline_ns)
            steps = self.hear(self.serving, deadline_ns)
        return Round(from_ns=from_ns, until_ns=until_ns, steps=steps, rollout=rollout)

    @contextmanager
    def lent(
        self, policy: str, name: str, until_ns: int, *, stretch: float = 1.0, slack_share: float = 0.0
    ) -> Iterator[None]:
        lease = LeaseTerms(
            number=len(self._leases) + 1,
            expires_ns=until_ns,
            compute_share=1.0,
            kv_budget_tokens=KV_TOKENS,
            regret_share=_REGRET_SHARE,
            policy=NAMES.index(policy),
            stretch=stretch,
            slack_share=slack_share,
        )
        self.page.set_lease(lease)
        self._leases.append(LeaseChange(monotonic_ns(), name, None))
        try:
            yield
        finally:
            self.page.set_lease(LeaseTerms())
            self._leases.append(LeaseChange(monotonic_ns(), None, None))

    def account(self) -> dict[str, int]:
        ended_ns = monotonic_ns()
        self._accountant.close(ended_ns, final=True)
        return {
            "slice_error_ns": slice_error_ns(self._slices, self._began_ns, ended_ns, self._anchor),
            "spans_lost": self._accountant.lost_spans,
            "late_ns": self._accountant.late_ns,
        }

    def close(self) -> None:
        self.serving.close()
        self.rollout.close()
        self.page.close()

    def hear(self, process: Peer, deadline_ns: int) -> Any:
        while not process.answers(_CLOSE_S):
            self._accountant.close(monotonic_ns())
            if monotonic_ns() > deadline_ns:
                raise PeerError(f"the process {process.name!r} did not answer in time")
        return process.hear()

    def _record(self, event: Event, *, durable: bool | None = None) -> None:
        if isinstance(event, DeviceSlice):
            self._slices.append(event)


def _claim(
    report: StageReport, account: dict[str, int], played: dict[str, list[Round]], serving: Ready, rollout: Ready
) -> None:
    modes = {name: mode_figures(rounds) for name, rounds in played.items()}
    report.detail |= {"serving": serving._asdict(), "rollouts": rollout._asdict(), "account": account, "modes": modes}
    report.claim("gate: slice sum error", account["slice_error_ns"], "ns", 0, "lower")
    left = layers_left(played.get(YIELD, []), rollout.layers)
    report.claim("gate: layers left on the device at a yield", left, "layers", LAYERS_AHEAD, "lower")
    if not {ALONE, UNSERVED} <= modes.keys():
        return
    alone = modes[ALONE]
    # Rollouts alone, scaled to the idle time: ungated rollouts beside serving take serving's time too.
    idle_steps_per_s = modes[UNSERVED]["rollout_steps_per_s"] * (1 - alone["busy_share"])
    report.fact("serving alone, busy share", round(alone["busy_share"], 3))
    report.fact("ungated rollout steps a second in the time that serving alone leaves idle", idle_steps_per_s)
    for name, mode in modes.items():
        if name in (ALONE, UNSERVED):
            continue
        kept = mode["rollout_steps_per_s"] / idle_steps_per_s if idle_steps_per_s > 0 else 0.0
        if name == YIELD:
            report.claim("gate: rollout steps, gated / ungated of the idle share", kept, "x", 0.7, "higher")
            report.fact("a rollout layer, ms", round(rollout.step_ns / rollout.layers / 1e6, 3))
        else:
            report.fact(f"rollout steps, {name} / ungated of the idle share", round(kept, 3))
        if not (alone["serving_steps"] and mode["serving_steps"]):
            continue
        slower = mode["latency_p99_ms"] / alone["latency_p99_ms"]
        if name == YIELD and not report.quick:
            report.claim("gate: serving p99, gated / alone", slower, "x", 1.07, "lower")
        else:
            report.fact(f"serving p99, {name} / alone", round(slower, 3))


def arrivals(seed: int, step_ns: int, from_ns: int, until_ns: int) -> tuple[tuple[int, int], ...]:
    """Return random (arrival time, steps) pairs that keep serving busy for `_BUSY_SHARE` of the time."""
    chance = random.Random(seed)
    requests: list[tuple[int, int]] = []
    at_ns = float(from_ns)
    idle_ns = step_ns * (_STEPS_MIN + _STEPS_MAX) / 2 * (1 - _BUSY_SHARE) / _BUSY_SHARE
    while True:
        at_ns += chance.expovariate(1 / idle_ns)
        if at_ns >= until_ns:
            return tuple(requests)
        steps = chance.randint(_STEPS_MIN, _STEPS_MAX)
        requests.append((round(at_ns), steps))
        at_ns += steps * step_ns


def layers_left(rounds: Iterable[Round], layers: int) -> int:
    yields = [given for one in rounds if one.rollout is not None for given in one.rollout.yields]
    return max((max(given.on_device, given.left) for given in yields), default=layers)


def slice_error_ns(slices: Sequence[DeviceSlice], began_ns: int, ended_ns: int, anchor: Anchor) -> int:
    """Return the summed errors, in ns, of slices that must cover [began_ns, ended_ns): wrong sums, gaps, wrong ends."""
    edges = [anchor.utc_ns(began_ns), *(edge for part in slices for edge in (part.t0_ns, part.t1_ns))]
    edges.append(anchor.utc_ns(ended_ns))
    gaps_ns = sum(abs(after - before) for before, after in list(pairwise(edges))[::2])
    sums_ns = [sum(int(getattr(part, f"{bucket}_ns")) for bucket in BUCKETS) for part in slices]
    return gaps_ns + sum(abs(total - (part.t1_ns - part.t0_ns)) for part, total in zip(slices, sums_ns, strict=True))


def mode_figures(rounds: Sequence[Round]) -> dict[str, Any]:
    seconds = sum(one.until_ns - one.from_ns for one in rounds) / 1e9
    steps = [step for one in rounds for step in one.steps if step.due_ns >= one.from_ns + SETTLING_NS]
    busy_ns = sum(
        max(0, min(step.end_ns, one.until_ns) - max(step.begin_ns, one.from_ns)) for one in rounds for step in one.steps
    )
    done = [one.rollout for one in rounds if one.rollout is not None]
    return {
        "serving_steps": len(steps),
        "latency_p99_ms": quantile_ms([step.end_ns - step.due_ns for step in steps], 0.99),
        "busy_share": busy_ns / 1e9 / seconds,
        "rollout_steps_per_s": sum(part.steps for part in done) / seconds,
        "requests_ended": sum(part.ended for part in done),
    }


def quantile_ms(values_ns: Sequence[int], share: float) -> float | None:
    return float(np.quantile(values_ns, share)) / 1e6 if values_ns else None
