from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from rose.runtime.coserving.kv.device_memory import DriverError, Reservation
from rose.runtime.coserving.kv.host_memory import HostMemory

PIECE = 256 * HostMemory.granularity


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[2]) * os.sysconf("SC_PAGE_SIZE")


def test_what_is_unmapped_is_no_longer_this_process_s():
    reservation = Reservation(HostMemory(), 16, PIECE)
    reservation.map(0, 16)
    reservation.tensor((reservation.size_bytes,), torch.uint8).fill_(7)
    before = resident_bytes()
    reservation.unmap(4, 12)
    assert before - resident_bytes() >= 8 * PIECE * 0.9
    reservation.close()


def test_a_call_that_fails_is_named():
    with pytest.raises(DriverError, match="munmap"):
        HostMemory().unreserve(1, PIECE)
