"""A host's look at the serving engines that are ROSE's own: their owner process runs again if it died."""

from __future__ import annotations

import time
from collections.abc import Callable

from rose.errors import UserError
from rose.runtime.service import owner
from rose.runtime.service.places import HostPlan

#: Between two starts of an owner process: one that ends at once is not started at each look.
_AGAIN_S = 5.0


class OwnServing:
    """`down`: by device, why a serving engine of ROSE's own does not serve there."""

    def __init__(self, plan: HostPlan) -> None:
        self.down: dict[str, str] = {}
        self._plan = plan
        self._again_s = time.monotonic()
        #: Whether the owner that runs is of this plan, and not of one before it.
        self._ensured = False

    def look(self) -> dict[str, str]:
        """The URLs of the engines that answer. Raises UserError and OSError if their owner cannot be started, or one
        that was started for other serving does not end."""
        plan = self._plan
        if not owner.served(plan):
            # Of a fleet file that had some, an owner may go on.
            owner.stop(plan)
            return {}
        if not (self._ensured and owner.runs(plan)) and time.monotonic() >= self._again_s:
            self._again_s = time.monotonic() + _AGAIN_S
            owner.ensure(plan)
            self._ensured = True
        urls, failures = owner.urls(plan), owner.failures(plan)
        self.down = {
            device_id: failures.get(device_id, "its serving engine is being started")
            for device_id in owner.served(plan)
            if device_id not in urls
        }
        return urls

    def keep(self, say: Callable[[str], None]) -> list[str]:
        """While the host is at work; returns the devices that are down since the last look. Their engines come back at
        their URLs, and have then to be shown their pages again."""
        if not (own := owner.served(self._plan)):
            return []
        before = self.down
        try:
            self.look()
        except (UserError, OSError) as error:
            # On a full disk: it is tried again.
            self.down = dict.fromkeys(own, f"its serving engine cannot be started: {error}")
        for device_id, why in self.down.items():
            if before.get(device_id) != why:
                say(f"{device_id}: {why}")
        return [device_id for device_id in self.down if device_id not in before]
