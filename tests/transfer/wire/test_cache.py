import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.transfer.wire.cache import ChunkCache


def name(number: int) -> str:
    return f"{number:064x}"


async def keep(cache: ChunkCache, number: int, size_bytes: int) -> None:
    await cache.reserve(name(number), size_bytes)
    cache.path(name(number)).write_bytes(bytes(size_bytes))
    cache.finish(name(number), complete=True)


def on_disk(folder: Path) -> set[int]:
    return {int(path.name, 16) for path in folder.iterdir() if path.name != "lock"}


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
