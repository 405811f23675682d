import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rose.runtime.coserving.kv.activation import NoRoomError
from rose.runtime.coserving.kv.device_memory import CudaMemory, DriverError, Reservation
from rose.runtime.coserving.kv.host_memory import HostMemory
from tests.runtime.coserving.kv.counted_memory import CountedMemory

PIECES = 12


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def memory(request):
    return CountedMemory() if request.param == "cpu" else CudaMemory(torch.device("cuda"))


@pytest.fixture
def reservation(memory):
    reservation = Reservation(memory, PIECES, memory.granularity)
    yield reservation
    reservation.close()


def filled(reservation):
    return reservation.tensor((PIECES, reservation.piece_bytes), torch.uint8)


def test_pieces_keep_their_address_and_the_others_their_bytes(reservation):
    reservation.map(0, PIECES)
    tensor = filled(reservation)
    assert tensor.data_ptr() == reservation.address
    tensor.fill_(3)
    reservation.unmap(4, 8)
    assert reservation.mapped_bytes == 8 * reservation.piece_bytes
    assert bool((tensor[:4] == 3).all())
    assert bool((tensor[8:] == 3).all())
    reservation.map(4, 8)
    tensor[4:8].fill_(5)
    assert tensor.data_ptr() == reservation.address
    assert int(tensor[:, 0].sum()) == 8 * 3 + 4 * 5


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, PIECES), st.integers(0, PIECES)), max_size=12))
def test_what_is_mapped_is_counted_whatever_is_asked(memory, acts):
    reservation = Reservation(memory, PIECES, memory.granularity)
    mapped: set[int] = set()
    for maps, *ends in acts:
        begin, end = sorted(ends)
        wanted = set(range(begin, end))
        if (mapped & wanted) if maps else not mapped >= wanted:
            with pytest.raises(AssertionError, match="pieces"):
                (reservation.map if maps else reservation.unmap)(begin, end)
        elif maps:
            reservation.map(begin, end)
            mapped |= wanted
        else:
            reservation.unmap(begin, end)
            mapped -= wanted
        assert reservation.mapped_bytes == len(mapped) * reservation.piece_bytes
    tensor = filled(reservation)
    for piece in mapped:
        tensor[piece].fill_(piece)
    assert all(bool((tensor[piece] == piece).all()) for piece in mapped)
    reservation.close()
    if isinstance(memory, CountedMemory):
        assert memory.held_bytes == 0


def test_a_device_without_room_leaves_all_as_it_was():
    memory = CountedMemory(8 * HostMemory.granularity)
    reservation = Reservation(memory, PIECES, memory.granularity)
    reservation.map(0, 3)
    filled(reservation)[:3].fill_(9)
    with pytest.raises(NoRoomError):
        reservation.map(3, PIECES)
    assert memory.held_bytes == reservation.mapped_bytes == 3 * memory.granularity
    assert bool((filled(reservation)[:3] == 9).all())
    reservation.map(3, 8)
    reservation.close()


def test_sizes_and_ranges_that_cannot_be_are_refused(memory, reservation):
    with pytest.raises(AssertionError, match="no multiple"):
        Reservation(memory, 1, memory.granularity + 1)
    with pytest.raises(AssertionError, match="not within"):
        reservation.map(0, PIECES + 1)


@pytest.mark.cuda
def test_the_driver_has_what_is_unmapped_and_graphs_go_on():
    memory = CudaMemory(torch.device("cuda"))
    reservation = Reservation(memory, 64, 16 * memory.granularity)
    reservation.map(0, 64)
    tensor = reservation.tensor((64, reservation.piece_bytes), torch.uint8)
    tensor.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensor[0].add_(1)
    free = memory.free_bytes()
    reservation.unmap(1, 64)
    assert memory.free_bytes() - free >= 63 * reservation.piece_bytes
    graph.replay()
    reservation.map(1, 64)
    graph.replay()
    torch.cuda.synchronize()
    assert bool((tensor[0] == 2).all())
    reservation.close()


PIECE_BYTES = 256 * HostMemory.granularity


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[2]) * os.sysconf("SC_PAGE_SIZE")


def test_what_is_unmapped_is_no_longer_this_process_s():
    reservation = Reservation(HostMemory(), 16, PIECE_BYTES)
    reservation.map(0, 16)
    reservation.tensor((reservation.size_bytes,), torch.uint8).fill_(7)
    before = resident_bytes()
    reservation.unmap(4, 12)
    assert before - resident_bytes() >= 8 * PIECE_BYTES * 0.9
    reservation.close()


def test_a_call_that_fails_is_named():
    with pytest.raises(DriverError, match="munmap"):
        HostMemory().unreserve(1, PIECE_BYTES)
