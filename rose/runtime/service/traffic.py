"""Replays the trace against one host's engines: `python -m rose.runtime.service.traffic FLEET_FILE`."""

import asyncio
import os
import signal
import sys
from collections import Counter
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from rose import config as configuration
from rose.clock import monotonic_ns
from rose.config import FleetConfig
from rose.errors import UserError
from rose.ledger.writer import LedgerWriter
from rose.runtime import places
from rose.runtime.coserving.leases.leasing import lease_id_of
from rose.runtime.coserving.page import ArbiterPage, PageError
from rose.runtime.fleet import host_cores, writer_name
from rose.runtime.host_plan import HostPlan
from rose.runtime.service import owner
from rose.runtime.service.memory import FleetMemory
from rose.runtime.traffic.replay import Replay, Target
from rose.runtime.traffic.trace import fit, open_trace
from rose.terminal import echo, user_errors


async def replay(config: FleetConfig) -> None:
    trace, remembered = open_trace(config.traffic), FleetMemory(config).read()
    if trace is None:
        raise UserError("traffic.trace is 'none': set it to 'bursty', or to a CSV file like the public Azure traces")
    if remembered is None:
        raise UserError(f"no fleet {config.name!r} runs on this host: `rose up` starts it")
    plan = HostPlan(config=config, host=places.hosts(config)[0].name, run_id=remembered.run_id, controller_url="")
    own, urls = plan.own, owner.urls(plan)
    serving = [device for device in own.device if device.pool == "serving"]
    # Clients must not use the devices that they measure.
    os.sched_setaffinity(0, host_cores(own.device))
    with LedgerWriter.open(plan.ledger, writer_name(own.host, "traffic"), plan.run_id) as writer:
        replays = []
        for number, device in enumerate(serving):
            if (url := device.serving_url or urls.get(device.id)) is None:
                raise UserError(f"no serving engine of device {device.id!r} answers yet: see `rose status`")
            promised = config.serving_on(device)
            target = Target(
                url=url,
                model=promised.model,
                token=os.environ.get("ROSE_SERVING_TOKEN"),
                device_id=device.id,
                engine_id=f"{device.id}-serving",
            )
            # Prompts differ by device and start, and so miss prefix caches.
            seed = config.traffic.seed + number + 1_000 * (os.getpid() % 1_000)
            lease_at = partial(_lease_at, plan, device.id)
            fitted = fit(trace, config.traffic)
            replays.append(Replay(fitted, target, promised, writer.record, lease_at=lease_at, seed=seed, repeat=True))
        await _until_stopped(replays)


async def _until_stopped(replays: list[Replay]) -> None:
    loop, running = asyncio.get_running_loop(), asyncio.gather(*(replay.run() for replay in replays))

    def stop() -> None:
        for replay in replays:
            replay.stop()
        loop.call_later(5.0, running.cancel)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    with suppress(asyncio.CancelledError):
        await running
    outcomes = sum((replay.outcomes for replay in replays), Counter[str]())
    echo(f"{outcomes['completed']} requests completed, {outcomes['failed']} failed", err=True)


def _lease_at(plan: HostPlan, device_id: str) -> str | None:
    with suppress(PageError, OSError), closing(ArbiterPage(plan.memory / device_id / "page")) as page:
        lease = page.lease()
        if lease.expires_ns > monotonic_ns():
            return lease_id_of(plan.run_id, device_id, lease.number)
    return None


def main() -> None:
    with user_errors():
        asyncio.run(replay(configuration.load(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
