"""How far some tests go: in the suite over a part of the cases, with `ROSE_TESTS_LONG=1` over all of them."""

from __future__ import annotations

import os
from typing import TypeVar

LONG = os.environ.get("ROSE_TESTS_LONG", "") not in ("", "0")

T = TypeVar("T")


def usual(part: T, *, long: T) -> T:
    """What a test goes over in the suite, or in the long form."""
    return long if LONG else part
