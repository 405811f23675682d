"""Pieces of the host's memory, and that they really come and go, in one process and between two."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rose.runtime.coserving.kv.activation import NoRoomError
from rose.runtime.coserving.kv.device_memory import DriverError, Reservation
from rose.runtime.coserving.kv.host_memory import HostMemory

PIECE = 256 * HostMemory.granularity

#: Takes a piece that another process holds, writes where that one looks, and says what it read.
NEIGHBOUR = """
import os, sys
import torch
from rose.runtime.coserving.kv.device_memory import Reservation
from rose.runtime.coserving.kv.host_memory import HostMemory
memory = HostMemory()
handle = memory.adopt(int(sys.argv[1]))
reservation = Reservation(memory, 1, int(sys.argv[2]))
reservation.map(0, 1, [handle])
tensor = reservation.tensor((reservation.size_bytes,), torch.uint8)
print(int(tensor.sum()))
tensor.fill_(5)
"""


def resident_bytes() -> int:
    """What this process holds of shared memory."""
    return int(Path("/proc/self/statm").read_text().split()[2]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_is_held_while_it_is_mapped_or_has_a_handle():
    memory = HostMemory(3 * PIECE)
    handle = memory.create(PIECE)
    assert memory.held_bytes == PIECE
    address = memory.reserve(PIECE)
    memory.map(address, PIECE, handle)
    memory.allow(address, PIECE)
    memory.release(handle)
    assert memory.held_bytes == PIECE
    assert memory.free_bytes() == 2 * PIECE
    memory.unmap(address, PIECE)
    assert memory.held_bytes == 0
    memory.unreserve(address, PIECE)


def test_there_is_no_more_than_the_limit():
    memory = HostMemory(PIECE)
    handle = memory.create(PIECE)
    with pytest.raises(NoRoomError, match="0 are free"):
        memory.create(PIECE)
    memory.release(handle)
    memory.release(memory.create(PIECE))


def test_what_is_unmapped_is_no_longer_this_process_s():
    reservation = Reservation(HostMemory(), 16, PIECE)
    reservation.map(0, 16)
    reservation.tensor((reservation.size_bytes,), torch.uint8).fill_(7)
    before = resident_bytes()
    reservation.unmap(4, 12)
    assert before - resident_bytes() >= 8 * PIECE * 0.9
    reservation.close()


def test_another_process_takes_a_piece_with_what_is_in_it():
    memory = HostMemory()
    handle = memory.create(PIECE)
    reservation = Reservation(memory, 1, PIECE)
    reservation.map(0, 1, [handle])
    tensor = reservation.tensor((PIECE,), torch.uint8)
    tensor.fill_(3)
    descriptor = memory.export(handle)
    answered = subprocess.run(
        [sys.executable, "-c", NEIGHBOUR, str(descriptor), str(PIECE)],
        pass_fds=[descriptor],
        capture_output=True,
        text=True,
        check=True,
    )
    os.close(descriptor)
    assert int(answered.stdout) == 3 * PIECE
    assert bool((tensor == 5).all()), "it is one memory"
    reservation.close()
    memory.release(handle)
    assert memory.held_bytes == 0


def test_a_call_that_fails_is_named():
    with pytest.raises(DriverError, match="munmap"):
        HostMemory().unreserve(1, PIECE)
