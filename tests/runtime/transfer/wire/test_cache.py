from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.wire.cache import ChunkCache


def name(number: int) -> str:
    return f"{number:064x}"


async def keep(cache: ChunkCache, number: int, size_bytes: int) -> None:
    await cache.reserve(name(number), size_bytes)
    cache.path(name(number)).write_bytes(bytes(size_bytes))
    cache.finish(name(number), complete=True)


def on_disk(folder: Path) -> set[int]:
    return {int(path.name, 16) for path in folder.iterdir() if path.name != "lock"}


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        cache = ChunkCache(tmp_path, 30)
        for number in range(3):
            await keep(cache, number, 10)
        with cache.held(name(0)):
            pass
        await keep(cache, 3, 15)
        assert on_disk(tmp_path) == {0, 3}
        assert [name(number) in cache for number in range(4)] == [True, False, False, True]
        assert cache.used_bytes == 25

    asyncio.run(scenario())


def test_one_in_use_stays_and_room_is_waited_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        cache = ChunkCache(tmp_path, 20)
        await keep(cache, 0, 10)
        with cache.held(name(0)):
            await cache.reserve(name(1), 10)
            waiting = asyncio.create_task(keep(cache, 2, 15))
            await asyncio.sleep(0)
            cache.finish(name(1), complete=True)
            await asyncio.sleep(0)
            assert not waiting.done()
            assert name(0) in cache
        await waiting
        assert on_disk(tmp_path) == {2}

    asyncio.run(scenario())


def test_what_is_larger_than_the_budget_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TransferError, match=f"chunk {name(7)} is 11 bytes and the relay's whole budget 10; enlarge"):
        asyncio.run(ChunkCache(tmp_path, 10).reserve(name(7), 11))
    with pytest.raises(ValueError, match="budget_bytes is 0"):
        ChunkCache(tmp_path, 0)


def test_after_a_restart_nothing_counts_as_complete_but_all_counts(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("not ours")
    for number, size in ((0, 10), (1, 10)):
        (tmp_path / name(number)).write_bytes(bytes(size))
    cache = ChunkCache(tmp_path, 25)
    assert cache.used_bytes == 20
    assert name(0) not in cache
    asyncio.run(keep(cache, 2, 15))
    assert (tmp_path / "notes").exists()
    cache.close()
    assert ChunkCache(tmp_path, 14).used_bytes <= 14


def test_a_download_that_failed_keeps_what_came(tmp_path: Path) -> None:
    async def scenario() -> None:
        cache = ChunkCache(tmp_path, 20)
        await cache.reserve(name(0), 10)
        cache.path(name(0)).write_bytes(b"abc")
        cache.finish(name(0), complete=False)
        assert (cache.used_bytes, name(0) in cache) == (3, False)
        await cache.reserve(name(0), 10)
        assert cache.path(name(0)).read_bytes() == b"abc"
        assert cache.used_bytes == 10

    asyncio.run(scenario())


def test_one_relay_to_a_folder(tmp_path: Path) -> None:
    first = ChunkCache(tmp_path, 10)
    with pytest.raises(TransferError, match="cache of another relay that is running"):
        ChunkCache(tmp_path, 10)
    first.close()
    ChunkCache(tmp_path, 10)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 12), st.booleans()), max_size=30))
def test_the_budget_holds_and_what_is_in_use_stays(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("cache")

    async def scenario() -> None:
        cache = ChunkCache(folder, 20)
        with ExitStack() as stack:
            held: set[int] = set()
            for number, size, hold in steps:
                if name(number) not in cache:
                    try:
                        await asyncio.wait_for(keep(cache, number, size), 0.001)
                    except TimeoutError:
                        stack.close()
                        held.clear()
                        continue
                if hold:
                    stack.enter_context(cache.held(name(number)))
                    held.add(number)
                assert held <= on_disk(folder)
                assert cache.used_bytes == sum((folder / name(n)).stat().st_size for n in on_disk(folder)) <= 20

    asyncio.run(scenario())
