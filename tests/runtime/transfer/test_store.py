from __future__ import annotations

import os
import random
import resource
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.manifest import Package, plan, read_index
from rose.runtime.transfer.shards import ModelShape
from rose.runtime.transfer.store import VersionStore
from tests.runtime.transfer.training import join, same, stage, weights


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder where fsync costs nothing."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def stems(store: VersionStore) -> list[str]:
    return [package.stem for package in store.packages()]


def files(folder: Path) -> dict[Path, bytes]:
    """All that a reader may meet."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "lock" not in path.name}


def chunks_of(store: VersionStore) -> set[str]:
    return {chunk.sha256 for package in store.packages() for chunk in store.manifest(package).chunks}


def chunks_in(store: VersionStore) -> set[str]:
    return {path.name for path in store.folder.glob("chunks/??/*")}


def test_deltas_composites_at_powers_of_two_and_an_anchor_every_n(memory: Path) -> None:
    store = VersionStore(memory, anchor_every=8)
    for version in range(12):
        published = store.publish(version, weights(version))
        assert (published.delta is None) == (version == 0)
        assert (published.anchor is not None) == (version in (0, 8))
        strides = [version - (manifest.base_version or 0) for manifest in published.composites]
        assert strides == [stride for stride in (2, 4, 8) if version and version % stride == 0]
    assert store.latest() == 11
    assert stems(store)[:6] == [
        "00000000-anchor",
        "00000001-from-00000000",
        "00000002-from-00000001",
        "00000002-from-00000000",
        "00000003-from-00000002",
        "00000004-from-00000003",
    ]
    assert read_index((memory / "index.json").read_bytes()) == store.packages()
    assert [package.blob_bytes for package in store.packages()] == [
        sum((memory / "chunks" / c.sha256[:2] / c.sha256).stat().st_size for c in store.manifest(package).chunks)
        for package in store.packages()
    ]
    assert chunks_in(store) == chunks_of(store)
    assert not [path for path in memory.rglob("*") if path.name.endswith(".tmp")]


def test_every_version_is_reached_from_everywhere_by_few_packages(memory: Path) -> None:
    store = VersionStore(memory / "store", anchor_every=16)
    for version in range(30):
        store.publish(version, weights(version))
    alike = [Package(package.version, package.base_version, 1) for package in store.packages()]
    for version in range(1, 30):
        for have in range(version):
            assert len(plan(alike, version, have)) <= 2 * (version - have).bit_length()
        joiner = plan([package for package in alike if package.version != 16 or package.base_version], version, None)
        assert len(joiner) <= 1 + version.bit_length(), "an anchor, and log2 of the distance and one deltas"
    for version, have in ((29, None), (29, 0), (29, 13), (16, 0), (8, 4), (15, None), (28, 27)):
        assert same(join(store, version, have, memory / "staged"), weights(version))


def test_one_identity_for_a_version_whatever_the_way(memory: Path) -> None:
    store = VersionStore(memory, anchor_every=4)
    for version in range(5):
        published = store.publish(version, weights(version))
    ways = [published.manifest, *published.composites, published.anchor]
    assert len(ways) == 4
    assert len({manifest.weights_sha256 for manifest in ways if manifest is not None}) == 1


def test_old_packages_go_but_never_those_since_the_last_anchor_but_one(memory: Path) -> None:
    store = VersionStore(memory, anchor_every=2, anchors_kept=2)
    for version in range(8):
        store.publish(version, weights(version))
    assert stems(store) == [
        "00000004-anchor",
        "00000005-from-00000004",
        "00000006-from-00000005",
        "00000006-from-00000004",
        "00000006-anchor",
        "00000007-from-00000006",
    ]
    assert chunks_in(store) == chunks_of(store)
    assert read_index((memory / "index.json").read_bytes()) == store.packages()


def test_a_composite_that_saves_nothing_is_left_out_where_an_anchor_is(memory: Path) -> None:
    store = VersionStore(memory / "store", anchor_every=4)
    generator = torch.Generator().manual_seed(0)
    for version in range(5):
        random_bits = torch.randint(-(2**15), 2**15, (64,), generator=generator, dtype=torch.int16)
        published = store.publish(version, {"w": random_bits.view(torch.bfloat16)})
    assert published.anchor is not None
    assert published.composites == ()
    assert [manifest.encoding for manifest in published.delta.pieces] == ["dense"] if published.delta else False
    assert chunks_in(store) == chunks_of(store)


def test_identical_chunks_are_stored_once(memory: Path) -> None:
    store = VersionStore(memory, anchor_every=100)
    for version in range(4):
        store.publish(version, weights(0))
    # One anchor, and one delta that says that nothing changed, which is all there is to know of all steps.
    assert len(chunks_in(store)) == 2
    assert len(store.packages()) == 5


def test_a_new_process_continues_the_chain(memory: Path) -> None:
    for version in range(6):
        published = VersionStore(memory / "store", anchor_every=4).publish(version, weights(version))
        assert (published.delta is None) == (version == 0)
        assert (published.anchor is None) == (version not in (0, 4))
    expected = VersionStore(memory / "fresh").publish(5, weights(5))
    assert published.manifest.base_version == 4
    assert published.manifest.weights_sha256 == expected.manifest.weights_sha256
    assert same(join(VersionStore(memory / "store"), 5, 2, memory / "staged"), weights(5))


def test_a_store_damaged_on_disk_is_not_built_upon(memory: Path) -> None:
    store = VersionStore(memory)
    chunk = store.publish(0, weights(0)).manifest.chunks[0].sha256
    path = memory / "chunks" / chunk[:2] / chunk
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(TransferError, match=r"tensor '\w+' at \[0, 0\] decodes to \w+, expected"):
        VersionStore(memory).publish(1, weights(1))
    path.write_bytes(content[:-1])
    with pytest.raises(TransferError, match=r"is \d+ bytes, expected \d+"):
        VersionStore(memory).publish(1, weights(1))
    (memory / "00000000-anchor.json").write_bytes(b"{}")
    with pytest.raises(TransferError, match=r"00000000-anchor\.json is damaged"):
        VersionStore(memory).packages()


def test_a_damaged_chunk_is_written_anew_when_it_is_needed_again(memory: Path) -> None:
    store = VersionStore(memory / "store")
    for version in range(2):
        published = store.publish(version, weights(0))
    chunk = published.manifest.chunks[0].sha256
    path = memory / "store" / "chunks" / chunk[:2] / chunk
    path.write_bytes(b"x" * path.stat().st_size)
    store.publish(2, weights(0))
    assert same(join(store, 2, None, memory / "staged"), weights(0))


def test_tied_tensors_are_published_once(memory: Path) -> None:
    tensors = weights(0)
    tensors["lm_head"] = tensors["embed"]
    published = VersionStore(memory).publish(0, tensors)
    assert [info.name for info in published.manifest.tensors] == ["eighth", "embed", "head", "none", "norm"]


def test_the_trainer_may_go_on_changing_its_tensors(memory: Path) -> None:
    tensors = weights(0)
    store = VersionStore(memory)
    store.publish(0, tensors)
    tensors["embed"][3] += 1
    delta = store.publish(1, tensors).delta
    assert delta is not None
    bits, before = (each["embed"].view(torch.int16) for each in (tensors, weights(0)))
    assert delta.changed_elements == int((bits != before).sum()) > 0


def test_tensors_are_cut_for_the_ranks_that_hold_them(memory: Path) -> None:
    model = ModelShape({"gate_proj.weight": (8, 4), "norm.weight": (4,)}, 4, 4, 2, 8)
    tensors = {name: torch.randn(shape) for name, shape in model.shapes.items()}
    manifest = VersionStore(memory, tp=4, model=model).publish(0, tensors).manifest
    assert [(piece.name, piece.start, piece.chunk) for piece in manifest.pieces] == [
        *(("gate_proj.weight", (2 * rank, 0), 0 if rank == 0 else rank + 1) for rank in range(4)),
        ("norm.weight", (0,), 1),
    ]
    with pytest.raises(ValueError, match="tp is 2: give the model's shape"):
        VersionStore(memory, tp=2)
    with pytest.raises(TransferError, match=r"'norm\.weight' has shape \[5\], expected \[4\]"):
        VersionStore(memory, tp=2, model=model).publish(1, {**tensors, "norm.weight": torch.randn(5)})


def test_what_cannot_be_published_is_refused_and_nothing_is_written(memory: Path) -> None:
    store = VersionStore(memory / "store")
    tensors = weights(0)
    store.publish(4, tensors)
    before = files(memory)
    with pytest.raises(TransferError, match="version 4 is not newer than version 4"):
        store.publish(4, tensors)
    with pytest.raises(TransferError, match=r"\['norm'\]"):
        store.publish(5, {name: tensor for name, tensor in tensors.items() if name != "norm"})
    with pytest.raises(TransferError, match=r"'norm' is bfloat16\[8, 4\], expected float32\[8, 4\] as in version 4"):
        store.publish(5, {**tensors, "norm": tensors["norm"].to(torch.bfloat16)})
    with pytest.raises(TransferError, match=r"'embed' is torch\.float64"):
        store.publish(5, {**tensors, "embed": tensors["embed"].double()})
    with pytest.raises(TransferError, match="no tensors"):
        store.publish(5, {})
    assert files(memory) == before
    assert store.publish(5, weights(5)).delta is not None


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """As on a full disk: the kernel refuses to write more than so much of a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def refusal(store: VersionStore, version: int) -> str | None:
    try:
        store.publish(version, weights(version))
    except TransferError as error:
        return str(error)
    return None


def test_a_full_disk_leaves_all_versions_as_they_were(memory: Path) -> None:
    store = VersionStore(memory / "store", anchor_every=2)
    for version in range(4):
        store.publish(version, weights(version))
    before = files(memory)
    sizes = sorted({len(content) for content in before.values()})
    refused = 0
    # From no byte at all to just enough: what fails is a chunk, a manifest, the index.
    for limit in [0, *(size + more for size in sizes for more in (-1, 0, 1))]:
        with file_size_limit(limit):
            reason = refusal(store, 4)
        if reason is None:
            break
        assert "version 4 cannot be written" in reason
        refused += 1
        assert files(memory) == before, limit
        assert store.latest() == 3
    assert refused > 5
    assert same(join(store, 4, 3, memory / "staged"), weights(4))
    assert same(join(store, 4, None, memory / "staged"), weights(4))
    store.publish(5, weights(5))
    assert same(join(store, 5, 4, memory / "staged"), weights(5))


def publish_on(folder: Path, versions: int) -> None:
    store = VersionStore(folder, anchor_every=4)
    latest = store.latest()
    for version in range(0 if latest is None else latest + 1, versions):
        store.publish(version, weights(version))


def test_a_publisher_that_is_killed_leaves_the_last_version_or_the_new_one(memory: Path) -> None:
    rng = random.Random(0)
    folder = memory / "store"
    began_s = time.monotonic()
    publish_on(memory / "measured", 4)
    four_s = time.monotonic() - began_s
    reached: list[int] = []
    # Until it has been killed at many points, also on a host that is busy.
    while len(reached) < 10 or len(set(reached)) < 4:
        child = os.fork()
        if child == 0:
            publish_on(folder, 10_000)
            os._exit(1)
        time.sleep(rng.random() * four_s)
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        store = VersionStore(folder, anchor_every=4)
        latest = store.latest()
        if latest is not None:
            reached.append(latest)
            for version in {package.version for package in store.packages()}:
                assert same(join(store, version, None, memory / "staged"), weights(version)), version
            if latest > 0:
                assert same(join(store, latest, latest - 1, memory / "staged"), weights(latest))
    assert reached == sorted(reached)
    latest = reached[-1]
    store.publish(latest + 1, weights(latest + 1))
    assert same(join(store, latest + 1, None, memory / "staged"), weights(latest + 1))
    # What the killed ones left behind is gone.
    assert chunks_in(store) == chunks_of(store)
    assert not [path for path in folder.rglob("*") if path.name.endswith(".tmp")]


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


OPERATIONS = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 3)),
    st.tuples(st.just("pin"), st.integers(0, 9)),
    st.tuples(st.just("renew"), st.integers(0, 9)),
    st.tuples(st.just("unpin"), st.integers(0, 9)),
    st.tuples(st.just("acknowledge"), st.integers(0, 9)),
    st.tuples(st.just("pass"), st.integers(1, 60)),
    st.tuples(st.just("prune"), st.just(0)),
    st.tuples(st.just("join"), st.integers(0, 9)),
    st.tuples(st.just("restart"), st.just(0)),
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
            delta = self.store.publish(self.version, weights(self.version)).delta
            assert delta is not None
            for version, cost in self.needs().items():
                assert cost <= before[version] + delta.blob_bytes, "to follow step by step would have been cheaper"

    def pin(self, number: int) -> None:
        have = self.pick_version(number)
        if have != self.version:
            way = plan(self.store.packages(), self.version, have)
            self.pins[self.store.pin(way, ttl_s=20)] = (self.clock.now_s + 20, way)

    def renew(self, number: int) -> None:
        if self.pins:
            pin = sorted(self.pins)[number % len(self.pins)]
            until, way = self.pins[pin]
            if until > self.clock.now_s:
                self.store.renew(pin, 30)
                self.pins[pin] = (self.clock.now_s + 30, way)
            else:
                with pytest.raises(TransferError, match="no pin"):
                    self.store.renew(pin, 30)

    def unpin(self, number: int) -> None:
        if self.pins:
            pin = sorted(self.pins)[number % len(self.pins)]
            self.store.unpin(pin)
            del self.pins[pin]

    def acknowledge(self, number: int) -> None:
        version = self.pick_version(number)
        if version is not None:
            receiver = f"../receiver {number % 3}"
            self.store.acknowledge(receiver, version)
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


@settings(max_examples=25, deadline=None)
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


def test_what_is_not_claimed_any_more_goes(memory: Path) -> None:
    clock = Clock()
    store = VersionStore(memory, anchor_every=2, anchors_kept=1, receiver_ttl_s=100, now=clock)
    store.publish(0, weights(0))
    pin = store.pin(store.packages(), ttl_s=10)
    store.acknowledge("late", 1)
    for version in range(1, 6):
        store.publish(version, weights(version))
    assert "00000000-anchor" in stems(store)
    assert "00000002-from-00000001" in stems(store)
    store.unpin(pin)
    store.unpin(pin)
    store.unpin("../../x")
    store.prune()
    assert "00000000-anchor" not in stems(store)
    assert "00000002-from-00000001" in stems(store)
    clock.now_s += 100
    store.prune()
    assert stems(store) == ["00000004-anchor", "00000005-from-00000004"]
    with pytest.raises(TransferError, match="no pin"):
        store.renew(pin, 1)
    with pytest.raises(TransferError, match="no pin"):
        store.renew("../index", 1)


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
                pin = reader.pin(way, 60)
                if set(way) <= set(reader.packages()):  # Else it was removed before it was pinned.
                    engine = join_by(reader, way, have, memory / name)
                    assert same(engine, weights(version)), (have, version)
                    reader.acknowledge(name, version)
                    joins.append((have, version))
                    have = version
                reader.unpin(pin)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=receive, args=(f"receiver-{index}",)) for index in range(2)]
    for thread in threads:
        thread.start()
    for version in range(1, 25):
        store.publish(version, weights(version))
    time.sleep(0.1)
    done.set()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert len(joins) > 4


def join_by(store: VersionStore, way: list[Package], have: int | None, folder: Path) -> dict[str, torch.Tensor]:
    from rose.runtime.transfer.apply import prepare

    engine = weights(have or 0)
    prepare(stage(store, way, folder), engine).commit()
    return engine
