"""`python -m rose.accept`: the same as `rose accept`."""

from __future__ import annotations

import sys

from rose.accept.command import main

if __name__ == "__main__":
    sys.exit(main())
