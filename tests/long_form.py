"""Cases of the suite, or of the long form with `ROSE_TESTS_LONG=1`."""

import os
from typing import TypeVar

LONG = os.environ.get("ROSE_TESTS_LONG", "") not in ("", "0")

T = TypeVar("T")


def usual(part: T, *, long: T) -> T:
    return long if LONG else part
