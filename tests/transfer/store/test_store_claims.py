"""Pins and acknowledgements: nothing disappears that a receiver needs, whatever else goes on."""

import os
import tempfile
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.transfer.apply.apply import prepare
from rose.transfer.errors import TransferError
from rose.transfer.package.manifest import Package, plan
from rose.transfer.store.claims import Claims, unneeded
from rose.transfer.store.store import VersionStore
from tests.transfer.training import Clock, chunks_in, chunks_of, join, same, stage, weights

OPERATIONS = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 3)),
    st.tuples(st.just("pass"), st.integers(1, 60)),
    st.tuples(st.sampled_from(["prune", "restart"]), st.just(0)),
    *(st.tuples(st.just(name), st.integers(0, 9)) for name in ("pin", "renew", "unpin", "acknowledge", "join")),
)


class Interleaving:
    """A store, the claims upon it as they should be, and what must hold after each operation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = Clock()
        self.version = 0
        self.pins: dict[str, tuple[float, list[Package]]] = {}
        self.acks: dict[str, tuple[float, int]] = {}
        self.restart(0)
        self.store.publish(0, weights(0))

    def restart(self, _: int) -> None:
        self.store = VersionStore(
            self.folder / "store", anchor_every=3, anchors_kept=1, receiver_ttl_s=50, now=self.clock
        )

    def pick_version(self, number: int) -> int | None:
        there = sorted({package.version for package in self.store.packages()})
        return None if number == 0 else there[number % len(there)]

    def publish(self, times: int) -> None:
        for _ in range(times):
            before = {self.version: 0, **self.needs()}
            self.version += 1
            delta = self.store.publish(self.version, weights(self.version))[0]
            for version, cost in self.needs().items():
                assert cost <= before[version] + delta.blob_bytes, "to follow step by step would have been cheaper"

    def pin(self, number: int) -> None:
        have = self.pick_version(number)
        if have != self.version:
            way = plan(self.store.packages(), self.version, have)
            self.pins[self.store.claims.pin(way, ttl_s=20)] = (self.clock.now_s + 20, way)

    def renew(self, number: int) -> None:
        if self.pins:
            pin = sorted(self.pins)[number % len(self.pins)]
            until, way = self.pins[pin]
            if until > self.clock.now_s:
                self.store.claims.renew(pin, 30)
                self.pins[pin] = (self.clock.now_s + 30, way)
            else:
                with pytest.raises(TransferError, match="is unknown"):
                    self.store.claims.renew(pin, 30)

    def unpin(self, number: int) -> None:
        if self.pins:
            pin = sorted(self.pins)[number % len(self.pins)]
            self.store.claims.unpin(pin)
            del self.pins[pin]

    def acknowledge(self, number: int) -> None:
        version = self.pick_version(number)
        if version is not None:
            receiver = f"../receiver {number % 3}"
            self.store.claims.acknowledge(receiver, version)
            self.acks[receiver] = (self.clock.now_s, version)

    def prune(self, _: int) -> None:
        self.store.prune()

    def join(self, number: int) -> None:
        have = self.pick_version(number)
        if have != self.version:
            assert same(join(self.store, self.version, have, self.folder / "staged"), weights(self.version))

    def needs(self) -> dict[int, int]:
        """The bytes of the cheapest way to the newest version, from where each receiver is or will be."""
        live = {version for at, version in self.acks.values() if at > self.clock.now_s - 50}
        live |= {way[-1].version for until, way in self.pins.values() if until > self.clock.now_s}
        packages = self.store.packages()
        return {
            version: sum(package.blob_bytes for package in plan(packages, self.version, version))
            for version in live - {self.version}
        }

    def check(self) -> None:
        there, chunks = set(self.store.packages()), chunks_in(self.store)
        live = [way for until, way in self.pins.values() if until > self.clock.now_s]
        for way in live:
            assert set(way) <= there
            assert {c.sha256 for package in way for c in self.store.manifest(package).chunks} <= chunks
        assert chunks_of(self.store) <= chunks


@settings(max_examples=6)
@given(st.lists(OPERATIONS, min_size=5, max_size=40))
def test_nothing_pinned_or_needed_ever_disappears(operations: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        world = Interleaving(Path(name))
        for operation, number in operations:
            before = world.needs()
            if operation == "pass":
                world.clock.now_s += number
            else:
                getattr(world, operation)(number)
            if operation == "prune":
                assert world.needs() == before, "the cheapest way is still there"
            world.check()
        for until, way in world.pins.values():
            if until > world.clock.now_s:
                stage(world.store, way, Path(name) / "pinned")
        world.join(0)


def test_receivers_join_while_versions_come_and_go(memory: Path) -> None:
    """Threads as servers and receivers have them, against a publisher that keeps one anchor only."""
    store = VersionStore(memory / "store", anchor_every=2, anchors_kept=1)
    store.publish(0, weights(0))
    done = threading.Event()
    failures: list[BaseException] = []
    joins: list[tuple[int | None, int]] = []

    def receive(name: str) -> None:
        reader, have = VersionStore(store.folder), None
        try:
            while not done.is_set():
                version = reader.latest()
                assert version is not None
                if version == have:
                    continue
                way = plan(reader.packages(), version, have)
                pin = reader.claims.pin(way, 60)
                if set(way) <= set(reader.packages()):  # Else it was removed before it was pinned.
                    assert same(join_by(reader, way, have, memory / name), weights(version)), (have, version)
                    reader.claims.acknowledge(name, version)
                    joins.append((have, version))
                    have = version
                reader.claims.unpin(pin)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=receive, args=(f"receiver-{index}",)) for index in range(2)]
    for thread in threads:
        thread.start()
    for version in range(1, 13):
        store.publish(version, weights(version))
    time.sleep(0.1)
    done.set()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert len(joins) > 4


def join_by(store: VersionStore, way: list[Package], have: int | None, folder: Path) -> dict[str, torch.Tensor]:
    engine = weights(have or 0)
    prepare(stage(store, way, folder), engine).commit()
    return engine


#: Anchors at 0, 4, 8; a delta to each version; composites of two.
PACKAGES = [
    *(Package(version, None, 100) for version in (0, 4, 8)),
    *(Package(version, version - 1, 10) for version in range(1, 11)),
    *(Package(version, version - 2, 15) for version in range(2, 11, 2)),
]


@given(st.sets(st.integers(0, 10)), st.sets(st.sampled_from(PACKAGES)), st.integers(1, 3))
def test_nobody_is_cut_off(acknowledged: set[int], pinned: set[Package], anchors: int) -> None:
    claims = {"anchors_kept": anchors, "pinned": [[package.stem] for package in pinned], "acknowledged": acknowledged}
    keep = set(PACKAGES) - set(unneeded(PACKAGES, **claims))
    assert pinned <= keep
    plan(keep, 10, None)
    for version in acknowledged - {10}:
        assert plan(keep, 10, version) == plan(PACKAGES, 10, version)
    assert unneeded(list(keep), **claims) == [], "once more changes nothing"


# ------------------------------------------------------------------ the files


def test_a_pin_lasts_as_long_as_it_is_renewed(tmp_path: Path) -> None:
    clock = Clock()
    claims = Claims(tmp_path, clock, nullcontext)
    first = claims.pin([Package(0, None), Package(1, 0)], 10)
    second = claims.pin([Package(1, 0)], 5)
    way, part = ["00000000-anchor", "00000001-from-00000000"], ["00000001-from-00000000"]
    assert sorted(claims.pinned()) == [way, part]
    clock.now_s += 9
    claims.renew(first, 4)
    with pytest.raises(TransferError, match="has expired; ask for a new pin"):
        claims.renew(second, 10)
    assert Claims(tmp_path, clock, nullcontext).pinned() == [way]
    clock.now_s += 4
    assert claims.pinned() == []
    assert not list((tmp_path / "pins").iterdir())


@pytest.mark.parametrize("name", ["../secret", "x" * 32, "0" * 31])
def test_no_name_from_outside_reaches_a_path(tmp_path: Path, name: str) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"packages": ["x"], "until_unix_s": 1e9}')
    claims = Claims(tmp_path, Clock(), nullcontext)
    claims.unpin(name)
    with pytest.raises(TransferError, match="is unknown"):
        claims.renew(name, 10)
    assert secret.exists()


def test_a_damaged_file_is_named_and_ends_what_needs_it(tmp_path: Path) -> None:
    claims = Claims(tmp_path, Clock(), nullcontext)
    pin = claims.pin([Package(0, None)], 10)
    claims.acknowledge("host", 0)
    (ack,) = (tmp_path / "acks").iterdir()
    for content in (
        "",
        "{",
        "[]",
        "{}",
        '{"packages": [], "until_unix_s": 1e9}',
        '{"packages": [7], "until_unix_s": 1}',
    ):
        (tmp_path / "pins" / f"{pin}.json").write_text(content)
        ack.write_text(content)
        with pytest.raises(TransferError, match=rf"pins/{pin}\.json is damaged.*; remove it"):
            claims.pinned()
        with pytest.raises(TransferError, match=rf"pins/{pin}\.json is damaged"):
            claims.renew(pin, 10)
        with pytest.raises(TransferError, match=r"acks/\w+\.json is damaged.*; remove it"):
            claims.acknowledged(10)


def test_receivers_are_forgotten_when_they_are_silent(tmp_path: Path) -> None:
    clock = Clock()
    claims = Claims(tmp_path, clock, nullcontext)
    names = ["host-1", "../../etc/passwd", "", "x" * 1000]
    for version, name in enumerate(names):
        claims.acknowledge(name, version)
    clock.now_s += 60
    claims.acknowledge("host-1", 7)
    assert claims.acknowledged(61) == {**dict(zip(names, range(4), strict=True)), "host-1": 7}
    assert all(path.parent == tmp_path / "acks" for path in tmp_path.rglob("*.json"))
    assert claims.acknowledged(60) == {"host-1": 7}


def test_pins_and_receivers_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rose.transfer.store.claims.PINS_MAX", 3)
    monkeypatch.setattr("rose.transfer.store.claims.RECEIVERS_MAX", 3)
    clock = Clock()
    claims = Claims(tmp_path, clock, nullcontext)
    for _ in range(3):
        claims.pin([Package(0, None)], 10)
    with pytest.raises(TransferError, match="3 pins"):
        claims.pin([Package(0, None)], 10)
    clock.now_s += 11
    claims.pin([Package(0, None)], 10)
    assert len(claims.pinned()) == 1
    for number in range(5):
        claims.acknowledge(f"host-{number}", number)
        clock.now_s += 1
        os.utime(max((tmp_path / "acks").iterdir(), key=lambda path: path.stat().st_mtime_ns), (number, number))
    assert sorted(claims.acknowledged(100)) == ["host-2", "host-3", "host-4"]
