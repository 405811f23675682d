"""One process gives way to another on a shared device: the product's gate, page, plugin and accounts, without SGLang.

A serving process runs bursts of steps; a rollout process runs steps without pause, in one way to share after another,
round by round. What serving's steps take beside rollouts is held against what they take alone; what rollouts get,
against what ungated ones would get out of the time that serving alone leaves idle.
"""

from __future__ import annotations

import importlib.util
import os
import resource
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rose.accept.gate import figures
from rose.accept.gate.device import Device, Mode, PartyError
from rose.accept.gate.messages import Ready, Round
from rose.accept.stage import Scope, StageReport
from rose.clock import monotonic_ns
from rose.runtime.coserving.hooks.gate import LAYERS_AHEAD

ALONE, UNSERVED, UNGATED, YIELD = "alone", "rollouts alone", "ungated", "yield"
_ALONE = Mode(name=ALONE, policy=None, seconds=5.0, quick_seconds=0.75)
#: What ungated rollouts make of a device that nobody else wants.
_UNSERVED = Mode(name=UNSERVED, policy="share_all", served=False, seconds=1.2, quick_seconds=0.4)
_UNGATED = Mode(name=UNGATED, policy="share_all", seconds=2.0, quick_seconds=0.5)
_YIELD = Mode(name=YIELD, policy="rose", seconds=5.0, quick_seconds=0.75)
_SHARED = (_ALONE, _UNSERVED, _UNGATED, _YIELD)
_GPU_MODES = (
    *_SHARED,
    Mode(name="yield, 1 layer ahead", policy="rose", layers_ahead=1, seconds=2.0),
    Mode(name="yield, 4 layers ahead", policy="rose", layers_ahead=4, seconds=2.0),
)
_CPU_MODES = (*_SHARED, Mode(name="yield, idle class", policy="rose", idle_class=True, seconds=3.0, quick_seconds=0.5))
_GRAPH_MODES = (
    Mode(name=ALONE, policy=None, seconds=2.0),
    _UNSERVED,
    Mode(name="graph", policy="rose", seconds=3.0),
)
_MPS_MODES = (
    Mode(name=ALONE, policy=None, seconds=1.5),
    _UNSERVED,
    Mode(name=UNGATED, policy="share_all", seconds=1.5),
    Mode(name=YIELD, policy="rose", seconds=1.5),
)
_ROUNDS, _PART_ROUNDS, _QUICK_ROUNDS = 3, 2, 2
_WARM_UP_S = 0.4
#: What a round takes beside its time, and a part before its rounds.
_ROUND_LOST_S, _START_S = 0.2, 4.0
#: Of the stage's time, what is kept for its end.
_END_S = 3.0
_MPS_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"


def measure(scope: Scope, report: StageReport) -> None:
    """On CPU cores too: there both processes share one. Raises PartyError if a part failed; the others go on."""
    deadline_ns = monotonic_ns() + round((scope.seconds - _END_S) * 1e9)
    if scope.gpu is None:
        parts = [_Part("", _cpu_modes(report), _ROUNDS, scope, report, core=_settle(report))]
    else:
        parts = [_Part("", _GPU_MODES, _ROUNDS, scope, report), *_gpu_parts(scope, report)]
    failures = []
    for index, part in enumerate(parts):
        later_s = sum(_START_S + other.planned_s for other in parts[index + 1 :])
        try:
            part.run(deadline_ns - round(later_s * 1e9))
        except PartyError as error:
            if error.skip:
                report.fact(f"{part.name}: skipped", str(error))
            else:
                failures.append(f"{part.name or 'gate'}: {error}")
        finally:
            part.device.close()
    if failures:
        raise PartyError("; ".join(failures))


def _settle(report: StageReport) -> int:
    """The core with the least to do, for the two processes; this one leaves it if there is another."""
    import psutil

    os.environ["OMP_NUM_THREADS"] = "1"
    cores = sorted(os.sched_getaffinity(0))
    busy = psutil.cpu_percent(interval=0.3, percpu=True)
    core = min(cores, key=lambda core: busy[core] if core < len(busy) else 100.0)
    if len(cores) > 1:
        os.sched_setaffinity(0, set(cores) - {core})
    report.fact("core that both share", core)
    return core


def _cpu_modes(report: StageReport) -> tuple[Mode, ...]:
    """Those whose class of process may be taken and left again."""
    nice_least, _ = resource.getrlimit(resource.RLIMIT_NICE)
    if os.geteuid() == 0 or nice_least >= 20:
        return _CPU_MODES
    report.fact("yield, idle class: skipped", "a process could not leave that class: it takes root or RLIMIT_NICE 20")
    return tuple(mode for mode in _CPU_MODES if not mode.idle_class)


def _gpu_parts(scope: Scope, report: StageReport) -> list[_Part]:
    """Those that need more of the host, each on a page and in processes of its own: none takes another along."""
    reasons = {
        "graph": None
        if importlib.util.find_spec("sglang") is not None
        else "sglang is not installed, whose breakable capture makes a graph of each layer",
        "mps": None
        if _mps_pipe() is not None
        else "no MPS daemon runs on this host (nvidia-cuda-mps-control -d starts one)",
    }
    parts = []
    for name, modes in (("graph", _GRAPH_MODES), ("mps", _MPS_MODES)):
        reason = "not in a quick run" if scope.quick else reasons[name]
        if reason is None:
            parts.append(_Part(name, modes, _PART_ROUNDS, scope, report))
        else:
            report.fact(f"{name}: skipped", reason)
    return parts


def _mps_pipe() -> Path | None:
    """Where the MPS daemon listens; None if there is none."""
    folder = Path(os.environ.get(_MPS_DIRECTORY, "/tmp/nvidia-mps"))
    return folder if (folder / "control").exists() else None


class _Part:
    """Modes that are played on one device, their rounds interleaved. The one without a name makes the claims."""

    def __init__(
        self,
        name: str,
        modes: Sequence[Mode],
        rounds: int,
        scope: Scope,
        report: StageReport,
        *,
        core: int | None = None,
    ) -> None:
        self.name, self._report, self._quick = name, report, scope.quick
        self._on_cores = core is not None
        seconds = {mode: mode.quick_seconds if scope.quick else mode.seconds for mode in modes}
        self._seconds = {mode: length for mode, length in seconds.items() if length}
        self._rounds = _QUICK_ROUNDS if scope.quick else rounds
        self._played: list[Round] = []
        # Where a daemon runs every process is its client, but for those that look for it elsewhere.
        mps = name == "mps"
        environment = () if mps or _mps_pipe() is None else ((_MPS_DIRECTORY, str(scope.folder / "no-mps")),)
        self.device = Device(
            scope.folder / (name or "gate"),
            device=scope.device,
            core=core,
            graph=name == "graph",
            # The others must not disturb its rounds.
            at_once=not name,
            environment=environment,
            # MPS knows two priorities, 0 and this.
            idle_environment=(("CUDA_MPS_CLIENT_PRIORITY", "1"),) if mps else (),
        )

    @property
    def planned_s(self) -> float:
        """What its rounds take."""
        return self._rounds * sum(seconds + _ROUND_LOST_S for seconds in self._seconds.values())

    def run(self, deadline_ns: int) -> None:
        """Start, play all rounds, shorter ones if time is short, and report. Raises PartyError."""
        ready = self.device.start(deadline_ns)
        left_s = (deadline_ns - monotonic_ns()) / 1e9
        if left_s <= 0:
            raise PartyError("no time was left for its rounds", skip=bool(self.name))
        scale = min(1.0, left_s / (self.planned_s + _WARM_UP_S))
        try:
            # What the gate has to know of step times, and a clock that is up.
            self.device.play(_UNSERVED, 0, _WARM_UP_S * scale)
            for number in range(self._rounds):
                modes = list(self._seconds)
                at = number % len(modes)
                for mode in (*modes[at:], *modes[:at]):
                    self._played.append(self.device.play(mode, number + 1, self._seconds[mode] * scale))
        finally:
            self._tell(ready)

    def _tell(self, ready: tuple[Ready, Ready]) -> None:
        """What there is, of all rounds so far."""
        report, account = self._report, self.device.account()
        modes = {mode.name: self._figures(mode) for mode in self._seconds if self._rounds_of(mode)}
        report.detail[self.name or "gate"] = {
            "serving": asdict(ready[0]),
            "rollouts": asdict(ready[1]),
            "account": account,
            "modes": modes,
        }
        report.save()
        if not self.name:
            report.claim("gate: slice sum error", account["slice_error_ns"], "ns", 0, "lower")
            report.fact("spans lost", account["spans_lost"])
            report.fact("span time that came after its slice, ns", account["late_ns"])
            self._claim_layers(ready[1])
        self._tell_modes(modes)
        gated = modes.get(YIELD)
        if not self.name and gated is not None and gated["wish_to_free_p99_ms"] is not None:
            report.fact("serving's wish to device free, p99", self._free(gated["wish_to_free_p99_ms"], ready[1]))

    def _figures(self, mode: Mode) -> dict[str, Any]:
        slices = [part for part in self.device.slices if part.lease_id == mode.name]
        rounds = self._rounds_of(mode)
        return figures.mode_figures(rounds, slices) | {"waited_ms": figures.waited_ms(rounds, self.device.spans)}

    def _rounds_of(self, *modes: Mode) -> list[Round]:
        names = {mode.name for mode in modes}
        return [part for part in self._played if part.mode in names]

    def _claim_layers(self, rollouts: Ready) -> None:
        bounded = [mode for mode in self._seconds if mode.policy == "rose" and mode.layers_ahead == LAYERS_AHEAD]
        done = [part.rollout for part in self._rounds_of(*bounded) if part.rollout is not None]
        left = figures.layers_left([given for rollout in done for given in rollout.yields], rollouts.layers)
        self._report.claim("gate: layers left on the device at a yield", left, "layers", LAYERS_AHEAD, "lower")

    def _free(self, free_ms: float, rollouts: Ready) -> str:
        if self._on_cores:
            return f"{free_ms:.3f} ms, in which serving has its share of the core"
        layer_ms = rollouts.step_ns / rollouts.layers / 1e6
        return f"{free_ms:.3f} ms, or {free_ms / layer_ms:.2f} layers"

    def _tell_modes(self, modes: dict[str, dict[str, Any]]) -> None:
        """Each mode that was played, against serving alone and against rollouts alone."""
        report, prefix = self._report, f"{self.name}: " if self.name else ""
        missing = {ALONE, UNSERVED} - modes.keys()
        if missing:
            report.fact(f"{prefix}nothing to compare with", f"not played: {', '.join(sorted(missing))}")
            return
        alone = modes[ALONE]
        # What ungated rollouts do beside serving is partly serving's time; this is what they could do without that.
        idle_steps_per_s = modes[UNSERVED]["rollout_steps_per_s"] * (1 - alone["busy_share"])
        report.fact(f"{prefix}serving alone, busy share", round(alone["busy_share"], 3))
        report.fact(
            f"{prefix}ungated rollout steps a second in the time that serving alone leaves idle", idle_steps_per_s
        )
        for name, mode in modes.items():
            if name in (ALONE, UNSERVED):
                continue
            claimed = name == YIELD and not self.name
            kept = figures.ratio(mode["rollout_steps_per_s"], idle_steps_per_s)
            if claimed:
                report.claim("gate: rollout steps, gated / ungated of the idle share", kept, "x", 0.7, "higher")
            else:
                report.fact(f"{prefix}rollout steps, {name} / ungated of the idle share", round(kept, 3))
            if mode["layers_on_device_at_yield_max"] is not None:
                report.fact(f"{prefix}layers on the device at a yield, {name}", mode["layers_on_device_at_yield_max"])
            if not alone["serving_steps"] or not mode["serving_steps"]:
                continue
            slower = mode["latency_p99_ms"] / alone["latency_p99_ms"]
            if claimed and not self._quick:
                report.claim("gate: serving p99, gated / alone", slower, "x", 1.07, "lower")
            else:
                report.fact(f"{prefix}serving p99, {name} / alone", round(slower, 3))
