"""Says what turns wait for once none of them was completed for a while."""

from __future__ import annotations

import logging
import time
from contextlib import suppress

from rose.client.address import RunAddress
from rose.client.control import call
from rose.client.errors import ClientError

#: The controller is asked so often at most.
STALLED_S = 10.0
_log = logging.getLogger("rose.client")


class Stalls:
    """Of the turns of one call, from now on. What it says is a warning of the logger `rose.client`."""

    def __init__(self) -> None:
        self._since_s = time.monotonic()
        self._said: str | None = None

    def look(self, address: RunAddress, waiting: int, *, moved: bool) -> None:
        """So many turns are not completed yet; `moved`: some were since the last time."""
        now_s = time.monotonic()
        if moved:
            self._since_s = now_s
        if now_s - self._since_s < STALLED_S:
            return
        self._since_s = now_s
        # One that is away is what the turns themselves say.
        with suppress(ClientError):
            why = call(address.url, "GET", f"/runs/{address.run_id}", token=address.token).get("waits")
            if why is not None and why != self._said:
                self._said = why
                _log.warning("%d turns of run %s wait: %s", waiting, address.run_id, why)
