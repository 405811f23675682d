"""One round: a policy in force, the same arrivals as in the others, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from rose.accept.coserve.account import Arrival, DeviceTime, device_time, met, still_open_ns
from rose.accept.coserve.host import ROLLOUT, Host
from rose.accept.coserve.keeper import Keeper
from rose.accept.coserve.policies import POLICIES
from rose.accept.coserve.traffic import Arrivals
from rose.accept.coserve.worker import Worker
from rose.clock import monotonic_ns
from rose.runtime.engines import models
from rose.runtime.engines.placement import is_scheduler
from rose.runtime.policy.slack import Budgets

#: Rollouts begin this long before the round, so that it begins with the engine at work.
_RAMP_S = 1.0


@dataclass(frozen=True, slots=True)
class Served:
    """One serving request as its client saw it. Times in nanoseconds; None where it did not come to that."""

    completed: bool
    ttft_ns: int | None
    tpot_ns: int | None
    tpot_max_ns: int | None
    send_delay_ns: int
    reason: str | None

    def within(self, budgets: Budgets) -> bool:
        """Whether it kept both promises; a request that failed kept none."""
        if not self.completed or self.ttft_ns is None:
            return False
        return self.ttft_ns <= budgets.ttft_ns and (self.tpot_ns is None or self.tpot_ns <= budgets.tpot_ns)


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """What one round of one policy measured."""

    policy: str
    number: int
    requests: tuple[Served, ...]
    device: DeviceTime
    #: What rollouts made, over `rollout_s`: the round and the ramp before it.
    rollout: dict[str, Any]
    rollout_s: float
    #: CPU seconds by role, of both cores; `others` is what else ran on the machine.
    cpu_s: dict[str, float]
    #: See `still_open_ns` and `met`.
    open_ns: tuple[int, ...]
    arrivals: tuple[Arrival, ...]
    lost_spans: int

    @property
    def tokens_per_s(self) -> float:
        """Rollout tokens a second."""
        return float(self.rollout.get("tokens", 0)) / self.rollout_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """What all rounds have in common."""

    host: Host
    serving: Worker
    rollout: Worker
    turns: int
    budgets: Budgets
    max_prompt_tokens: int

    def play(self, policy: str, number: int, arrivals: Arrivals, seconds: float, seed: int) -> Round:
        """Play a round of `seconds`; `seed` is of the prompts' text. Rollouts end with it, serving's last do after."""
        host, way = self.host, POLICIES[policy]
        host.adopt(way)
        keeper = Keeper(host.page, host.memory, way, self.budgets, self.max_prompt_tokens, host.rollout_tokens)
        made: dict[str, Any] = {}
        cpu = CpuTimes(self._roles())
        keeper.start()
        try:
            rollouts_began_ns = monotonic_ns()
            if way.lends:
                self.rollout.tell(url=host.seats[ROLLOUT].engine.url, turns=self.turns, seed=seed)
            time.sleep(_RAMP_S)
            began_cpu = cpu.read()
            self.serving.tell(**serving_command(host.seats["serving"].engine.url, arrivals, seed))
            t0_ns = int(self.serving.hear()["began_ns"])
            t1_ns = t0_ns + round(seconds * 1e9)
            time.sleep(max(0.0, (t1_ns - monotonic_ns()) / 1e9))
            ended_cpu = cpu.read()
            rollouts_ended_ns = monotonic_ns()
            if way.lends:
                self.rollout.tell(stop=True)
                made = self.rollout.hear()
            served = self.serving.hear()["requests"]
        finally:
            keeper.stop()
        return Round(
            policy=policy,
            number=number,
            requests=tuple(as_served(request) for request in served),
            device=device_time(keeper.spans, keeper.samples, t0_ns, t1_ns, lent=way.lends, core_share=way.core_share),
            rollout=made,
            rollout_s=(rollouts_ended_ns - rollouts_began_ns) / 1e9,
            cpu_s={role: round(ended_cpu[role] - began_cpu[role], 3) for role in ended_cpu},
            open_ns=tuple(still_open_ns(keeper.spans, t0_ns, t1_ns)),
            arrivals=tuple(met(keeper.spans, t0_ns, t1_ns)),
            lost_spans=keeper.lost_spans,
        )

    def _roles(self) -> dict[str, list[psutil.Process]]:
        roles: dict[str, list[psutil.Process]] = {
            "serving client": [psutil.Process(self.serving.pid)],
            "rollout client": [psutil.Process(self.rollout.pid)],
            "controller": [psutil.Process()],
        }
        for name in self.host.seats:
            for process in self.host.processes(name):
                part = "scheduler" if is_scheduler(process) else "HTTP and tokenizers"
                role = f"{'serving' if name == 'serving' else 'rollout'} {part}"
                roles.setdefault(role, []).append(process)
        return roles


def serving_command(url: str, arrivals: Arrivals, seed: int) -> dict[str, object]:
    """What the serving worker is told."""
    return {"url": url, "model": models.SMOLLM2, "seed": seed, **asdict(arrivals)}


def as_served(request: dict[str, Any]) -> Served:
    """A `Request` event as a worker told it."""
    return Served(
        completed=request["outcome"] == "completed",
        ttft_ns=request["ttft_ns"],
        tpot_ns=request["tpot_mean_ns"],
        tpot_max_ns=request["tpot_max_ns"],
        send_delay_ns=request["send_delay_ns"],
        reason=request["reason"],
    )


class CpuTimes:
    """CPU seconds so far, by role, and of everything else on the machine."""

    def __init__(self, roles: dict[str, list[psutil.Process]]) -> None:
        self._roles = roles

    def read(self) -> dict[str, float]:
        """User and system seconds. A process that has ended counts as nothing."""
        seconds = {role: sum(map(_cpu_s, processes)) for role, processes in self._roles.items()}
        whole = psutil.cpu_times()
        busy = whole.user + whole.nice + whole.system + whole.irq + whole.softirq
        return {**seconds, "others": busy - sum(seconds.values()), "stolen by the host": whole.steal}


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def order(policies: Sequence[str], number: int) -> list[str]:
    """The order of a round: rotated by one each time, so that no policy always follows the same one."""
    start = number % len(policies)
    return [*policies[start:], *policies[:start]]
