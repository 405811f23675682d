"""`python -m benchmarks.faults.runs.look URL TOKEN`: what the controller says of its runs and devices, every second.

It runs on a host of the fleet, until it is ended, and prints a line of JSON each time that it is answered.
"""

from __future__ import annotations

import json
import sys
import time

from rose.errors import UserError
from rose.runtime.service.console import ControllerClient

_LOOK_S = 1.0
_RUN = ("run_id", "team", "state", "fence", "version", "turns_in_flight", "turns_completed")
_DEVICE = ("device_id", "host", "clock_offset_ns", "clock_steps", "not_lent")


def main() -> None:
    client = ControllerClient(*sys.argv[1:])
    while True:
        try:
            status = client.status()
        except UserError:
            # It is away: whoever reads this sees that it says nothing.
            status = None
        if status is not None:
            runs = [{name: run[name] for name in _RUN} for run in status["runs"]]
            devices = [{name: device[name] for name in _DEVICE} for device in status["devices"]]
            print(json.dumps({"runs": runs, "devices": devices, "leases": len(status["leases"])}), flush=True)
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    main()
