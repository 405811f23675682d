"""`rose traffic`: replays the fleet file's serving traffic against the serving engines of this host, and records every
request as its client saw it, until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rose.clock import monotonic_ns
from rose.config import DeviceConfig, FleetConfig
from rose.errors import UserError
from rose.ledger.writer import LedgerWriter
from rose.runtime.coserving.leases.leasing import lease_id_of
from rose.runtime.coserving.page import ArbiterPage, PageError
from rose.runtime.fleet import host_cores, writer_name
from rose.runtime.service import memory, owner, places
from rose.runtime.service.places import HostPlan
from rose.runtime.traffic.replay import Replay, Target
from rose.runtime.traffic.trace import fit, open_trace
from rose.terminal import echo

#: How long requests in flight may take to finish at the end.
_DRAIN_S = 5.0
_PROGRESS_S = 10.0


class TrafficError(UserError):
    """There is nothing to replay, or nothing to replay it against."""


def replay(config: FleetConfig, host: str | None, say: Callable[[str], None]) -> None:
    """Replay until SIGINT or SIGTERM. `host` names the host that this is, where the fleet has several.

    Raises TrafficError, and what the trace's file raises.
    """
    asyncio.run(_replay(config, _plan(config, host), say))


def _plan(config: FleetConfig, host: str | None) -> HostPlan:
    names = [known.name for known in places.hosts(config)]
    if host is None and len(names) > 1:
        raise TrafficError(f"the fleet has the hosts {', '.join(names)}: say by --host which one this is")
    if host is not None and host not in names:
        raise TrafficError(f"there is no host {host!r} in the fleet file, only {', '.join(names)}")
    plan = HostPlan(config=config, host=host or names[0], run_id="", controller_url="")
    run_id = memory.run_at(plan.state)
    if run_id is None:
        raise TrafficError(f"no fleet {config.name!r} runs on this host: `rose up` starts it")
    return replace(plan, run_id=run_id)


async def _replay(config: FleetConfig, plan: HostPlan, say: Callable[[str], None]) -> None:
    trace = open_trace(config.traffic)
    if trace is None:
        raise TrafficError("traffic.trace is 'none': name a CSV in the columns of the public Azure traces, or 'bursty'")
    fitted = fit(trace, config.traffic)
    own, urls = plan.own, owner.urls(plan)
    # Clients are no part of the devices whose latency they measure.
    os.sched_setaffinity(0, host_cores(own.device))
    devices = [device for device in own.device if device.pool == "serving"]
    name = writer_name(own.host, "traffic")
    with LedgerWriter.open(plan.ledger, name, plan.run_id) as writer:
        replays = [
            Replay(
                fitted,
                Target(
                    url=_url(device, urls),
                    model=config.serving.model,
                    token=os.environ.get("ROSE_SERVING_TOKEN"),
                    device_id=device.id,
                    engine_id=f"{device.id}-serving",
                ),
                config.serving,
                writer.record,
                lease_at=_LeaseAt(plan, device.id).read,
                # With other prompts on each, and each time: a prefix cache would answer for the server.
                seed=config.traffic.seed + number + 1_000 * (os.getpid() % 1_000),
                repeat=True,
            )
            for number, device in enumerate(devices)
        ]
        say(f"replaying {fitted.trace.name} against {', '.join(device.id for device in devices)}")
        await _until_stopped(replays, say)


async def _until_stopped(replays: list[Replay], say: Callable[[str], None]) -> None:
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    running = [asyncio.create_task(replay.run()) for replay in replays]
    waiting = asyncio.create_task(stopping.wait())
    while not waiting.done() and not any(task.done() for task in running):
        await asyncio.wait([waiting, *running], timeout=_PROGRESS_S, return_when=asyncio.FIRST_COMPLETED)
        counts = [replay.counts for replay in replays]
        say(f"{sum(c.completed for c in counts)} requests completed, {sum(c.failed for c in counts)} failed")
    for replay in replays:
        replay.stop()
    await asyncio.wait(running, timeout=_DRAIN_S)
    for task in running:
        task.cancel()
    for outcome in await asyncio.gather(
        waiting if waiting.done() else _done(waiting), *running, return_exceptions=True
    ):
        if isinstance(outcome, Exception):
            raise outcome


async def _done(task: asyncio.Task[bool]) -> None:
    task.cancel()


def _url(device: DeviceConfig, urls: dict[str, str]) -> str:
    url = device.serving_url or urls.get(device.id)
    if url is None:
        raise TrafficError(f"no serving engine of device {device.id!r} answers yet: `rose status` says why")
    return url


class _LeaseAt:
    """The lease in force on a device, which its page has; an agent that is started anew makes another page."""

    def __init__(self, plan: HostPlan, device_id: str) -> None:
        self._plan, self._device_id = plan, device_id
        self._page: ArbiterPage | None = None

    def read(self) -> str | None:
        with suppress(PageError, OSError):
            if self._page is not None and self._page.replaced():
                self._page.close()
                self._page = None
            if self._page is None:
                self._page = ArbiterPage(self._plan.memory / self._device_id / "page")
            lease = self._page.lease()
            if lease.expires_ns > monotonic_ns():
                return lease_id_of(self._plan.run_id, self._device_id, lease.number)
        return None


def main() -> None:
    """`python -m rose.runtime.service.traffic FILE`: the fleet's configuration as JSON; progress on stderr."""
    config = FleetConfig.model_validate_json(Path(sys.argv[1]).read_text())
    replay(config, None, lambda text: echo(text, err=True))


if __name__ == "__main__":
    main()
