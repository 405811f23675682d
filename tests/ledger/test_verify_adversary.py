"""An adversary who may write to the folder: either `verify` names what was done, or no figure of the views changed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rose.events import Ledger, Power
from rose.ledger import catalog, layout, rows, segments
from rose.ledger.checks import registry
from rose.ledger.evidence import continuation, keys, links, receipt
from rose.ledger.examine import Seen
from rose.ledger.growth import archive, compaction, rolled, rollup
from rose.ledger.growth.rolled import FOLDER
from rose.ledger.layout import LedgerError
from rose.ledger.verify import verify
from rose.ledger.writer import LedgerWriter

DAY_US = 86_400_000_000
Act = Callable[[Path], Any]


def _append(root: Path, tail: segments.Tail, count: int, power_mw: int = 7) -> segments.Tail:
    batch: list[rows.Row | pa.Table] = []
    for seq in range(tail.next_seq, tail.next_seq + count):
        at_us = DAY_US + seq
        event = Power(at_us=at_us, device_id="d", t0_ns=seq, t1_ns=seq + 1, power_mw=power_mw, source="rapl")
        batch.append(("power", rows.encode(event)))
    return segments.append(root, tail, rows.table(tail.writer, tail.next_seq, "r", "live", batch))


def _write(root: Path, writer: str, epochs: int, per_epoch: int, power_mw: int = 7) -> None:
    tail = segments.first_epoch(root, writer)
    for epoch in range(epochs):
        if epoch:
            tail = segments.begin_epoch(root, tail)
        for _ in range(per_epoch):
            tail = _append(root, tail, 2, power_mw)


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Archived, compacted, superseded and live parts of several writers, rolled up and verified."""
    return _make(layout.create(tmp_path_factory.mktemp("adversary") / "ledger"))


def _make(root: Path, power_mw: int = 7) -> Path:
    _write(root, "old", epochs=2, per_epoch=2, power_mw=power_mw)
    compaction.compact(root, grace_s=0)
    rollup.roll_up(root)
    archive.archive(root, older_than_days=1, to=None, delete=True, grace_s=0)
    _write(root, "a", epochs=3, per_epoch=2, power_mw=power_mw)
    _write(root, "b", epochs=1, per_epoch=3, power_mw=power_mw)
    # What was merged awaits its removal.
    compaction.compact(root, grace_s=3600)
    rollup.roll_up(root, grace_s=3600)
    states = [part.state for writer in ("old", "a") for part in layout.chain(root, writer)]
    assert states == ["archived", "live", "compacted", "live"]
    assert any(superseded for _, superseded in layout.all_parts(root, "a"))
    assert len(list((root / FOLDER).iterdir())) == 2
    catalog.connect(root).close()
    assert verify(root).problems == []
    return root


@pytest.fixture(scope="session")
def figures(pristine: Path) -> Any:
    return _figures(pristine)


@pytest.fixture
def root(pristine: Path, tmp_path: Path) -> Path:
    return shutil.copytree(pristine, tmp_path / "ledger")


def _figures(root: Path) -> Any:
    """A checksum of every view as our readers see it, or why there is none."""
    try:
        with catalog.connect(root) as connection:
            sums = [f"(SELECT (count(*), sum(hash(one))) FROM {view} AS one)" for view in catalog.VIEWS]
            return connection.execute(f"SELECT {', '.join(sums)}").fetchall()
    except (LedgerError, duckdb.Error) as error:
        return f"unreadable: {type(error).__name__}"


def _newest(root: Path, writer: str = "a") -> Path:
    epoch = root / f"live/{writer}/{layout.epochs(root, writer)[-1]:06d}"
    return epoch / segments.segment_names(epoch)[-1]


def _forge_newest(root: Path, power_mw: int) -> None:
    """Another newest segment, sound in itself, in the place of the one that the head names."""
    path = _newest(root)
    header = segments.read_header(path.read_bytes())
    event = Power(at_us=DAY_US, device_id="d", t0_ns=0, t1_ns=1, power_mw=power_mw, source="rapl")
    batch: list[rows.Row | pa.Table] = [("power", rows.encode(event))] * (header.last_seq - header.first_seq + 1)
    table = rows.table("a", header.first_seq, "r", "live", batch)
    tail = segments.Tail("a", header.epoch, header.index, header.first_seq, header.previous_sha256)
    head = (root / "heads/a.json").read_bytes()
    path.unlink()
    segments.append(root, tail, table)
    (root / "heads/a.json").write_bytes(head)


def _forge_next(root: Path) -> None:
    head = (root / "heads/a.json").read_bytes()
    tail = segments.recover(root, "a")
    assert tail is not None
    _append(root, tail, 2)
    (root / "heads/a.json").write_bytes(head)


def _forge_writer(root: Path) -> None:
    registered = (root / "writers.jsonl").read_bytes()
    _write(root, "forged", epochs=1, per_epoch=1)
    (root / "writers.jsonl").write_bytes(registered)


def _remove_writer(root: Path, writer: str) -> None:
    for folder in ("live", "compacted", "archived"):
        shutil.rmtree(root / folder / writer, ignore_errors=True)
    (root / f"heads/{writer}.json").unlink()


def _set_back(root: Path) -> None:
    """The newest segment gone, and the head as it was before that."""
    path = _newest(root)
    before = sorted(path.parent.iterdir())[-2]
    path.unlink()
    (root / "heads/a.json").write_text(json.dumps({"segment": str(before.relative_to(root))}))


def _without_registry(act: Act) -> Act:
    def both(root: Path) -> None:
        act(root)
        (root / "writers.jsonl").unlink()

    return both


def _without_record(act: Act) -> Act:
    def both(root: Path) -> None:
        act(root)
        shutil.rmtree(root / "verified")

    return both


def _schema_with_rows(root: Path) -> None:
    event = Power(at_us=DAY_US, device_id="d", t0_ns=0, t1_ns=1, power_mw=1, source="rapl")
    table = rows.table("a", 0, "r", "live", [("power", rows.encode(event))])
    whole = pa.concat_tables([rows.schema().empty_table(), table], promote_options="default")
    pq.write_table(whole, root / "schema.parquet")


def _sql(statement: str) -> Act:
    def edit(root: Path) -> None:
        with duckdb.connect(root / layout.CATALOG) as connection:
            connection.execute(statement)

    return edit


def _superseded(root: Path) -> Path:
    return sorted((root / "live/a/000000").iterdir())[-1]


def _flip(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])


ACTS: dict[str, tuple[Act, str]] = {
    "a dotfile copy of a segment": (
        lambda root: shutil.copy(_newest(root), _newest(root).with_name(".x.parquet")),
        ".x.parquet: a foreign file",
    ),
    "a copy under a name that is none": (
        lambda root: shutil.copy(_newest(root), _newest(root).with_name("x.parquet")),
        "x.parquet: a foreign file",
    ),
    "a copy of an epoch under another text for its number": (
        lambda root: shutil.copytree(root / "live/a/000002", root / "live/a/0000003"),
        "live/a/0000003: a foreign name",
    ),
    "a foreign file among the compacted": (
        lambda root: shutil.copy(next(root.glob("compacted/a/*.parquet")), root / "compacted/a/x.parquet"),
        "compacted/a/x.parquet: a foreign name",
    ),
    "rows in the schema file": (_schema_with_rows, "schema.parquet: it has 1 rows"),
    "a view replaced": (_sql("CREATE OR REPLACE VIEW power AS SELECT * FROM event WHERE false"), "view power is not"),
    "events filtered in the source": (
        _sql("CREATE OR REPLACE VIEW stored_event AS FROM unrolled_stored_event WHERE kind != 'power'"),
        "view stored_event is not",
    ),
    "a macro in the place of a function": (_sql("CREATE MACRO sum(x) AS 42"), "macro main.sum is foreign"),
    "a macro in the place of what the comparison asks": (
        _sql("CREATE MACRO duckdb_views() AS TABLE SELECT 1"),
        "macro main.duckdb_views is foreign",
    ),
    "a table": (_sql("CREATE TABLE paid AS SELECT 1 AS x"), "table main.paid is foreign"),
    "a schema": (_sql("CREATE SCHEMA other; CREATE VIEW other.power AS SELECT 1"), "schema other is foreign"),
    "a view removed": (_sql("DROP VIEW hold"), "view hold is missing"),
    "the newest segment replaced": (lambda root: _forge_newest(root, 1), "the newest segment is missing"),
    "a segment added after the newest": (_forge_next, "does not name it as the newest segment"),
    "a writer added": (_forge_writer, "live/forged: a foreign writer"),
    "a writer removed": (lambda root: _remove_writer(root, "b"), "live/b: every segment of the writer is missing"),
    "a writer removed, and the registry": (
        _without_registry(lambda root: _remove_writer(root, "b")),
        "it is missing, and was there when the ledger was last verified",
    ),
    "a merged writer removed, with all that speaks of it but events": (
        _without_record(_without_registry(lambda root: _remove_writer(root, "a"))),
        "live/a: it ends at seq -1, and seq 7 was merged or summed up",
    ),
    "a line of the registry removed": (
        lambda root: (root / "writers.jsonl").write_bytes(
            b"".join((root / "writers.jsonl").read_bytes().splitlines(True)[1:])
        ),
        "writers.jsonl: line 1 does not follow",
    ),
    "the head set back": (_set_back, "was there when the ledger was last verified"),
    "the roll-ups removed": (lambda root: shutil.rmtree(root / FOLDER), "rollup: the newest generation"),
    "the newest roll-up removed": (
        lambda root: shutil.rmtree(root / FOLDER / "000001"),
        "rollup: the newest generation",
    ),
    "an older roll-up put in the newest's place": (
        lambda root: shutil.copytree(root / FOLDER / "000000", root / FOLDER / "000002"),
        "rollup: the newest generation",
    ),
    "a roll-up that was replaced altered": (
        lambda root: _flip(root / FOLDER / "000000/daily_event.parquet"),
        "rollup/000000/daily_event.parquet: its bytes were changed",
    ),
    "what awaits removal altered": (lambda root: _flip(_superseded(root)), "its bytes were changed"),
    "a file added to what awaits removal": (
        lambda root: shutil.copy(_newest(root), root / "live/a/000000"),
        "it is not among those that were merged",
    ),
    "a foreign head": (lambda root: (root / "heads/x").touch(), "heads/x: a foreign name"),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTS)
def test_what_was_done_is_named_and_changes_no_figure_of_an_edited_view(root: Path, name: str, figures: Any) -> None:
    act, problem = ACTS[name]
    act(root)
    problems = verify(root).problems
    assert any(problem in found for found in problems), problems
    # Asked twice: a verification must not take the new state for the right one.
    assert any(problem in found for found in verify(root).problems)
    if "ledger.duckdb" in problems[0] or "schema.parquet" in problems[0] or "foreign file" in problems[0]:
        assert _figures(root) == figures


@pytest.mark.parametrize("power_mw", range(20))
def test_a_newest_segment_that_is_not_the_head_s_is_found_however_its_hash_sorts(root: Path, power_mw: int) -> None:
    _forge_newest(root, power_mw)
    assert any("the newest segment is missing" in problem for problem in verify(root).problems)


def test_a_head_that_names_a_segment_of_another_writer_is_found(root: Path) -> None:
    """It would hide that the newest segments are gone."""
    (root / "heads" / "a.json").write_bytes((root / "heads" / "b.json").read_bytes())
    assert "heads/a.json is damaged" in str(verify(root).problems)


def test_an_edited_catalog_is_replaced_by_the_next_reader(root: Path, figures: Any) -> None:
    _sql("CREATE OR REPLACE VIEW power AS SELECT * FROM event WHERE false; CREATE MACRO count(x) AS 7")(root)
    assert _figures(root) == figures
    assert verify(root).problems == []


def test_files_of_another_ledger_in_the_working_directory_are_not_read(
    root: Path, pristine: Path, tmp_path: Path, figures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = shutil.copytree(pristine, tmp_path / "other")
    for path in [*other.glob("compacted/a/*.parquet"), *other.glob("rollup/*/daily_event.parquet")]:
        pq.write_table(pq.read_table(path).slice(0, 0), path)
    monkeypatch.chdir(other)
    assert _figures(root) == figures


def _apply(root: Path, data: st.DataObject) -> None:
    """One thing that somebody may do to the files."""
    files = sorted(
        path
        for folder in ("live", "compacted", "archived", "rollup", "heads", "schema.parquet", "writers.jsonl")
        for path in ([root / folder] if (root / folder).is_file() else (root / folder).rglob("*"))
        if path.is_file()
    )
    writers = {root / "live/a", root / "live/b", root / "compacted/a"}
    # What was done before may have removed some.
    folders = sorted(path for path in {path.parent for path in files if path.parent != root} | writers if path.is_dir())
    file = data.draw(st.sampled_from(files))
    match data.draw(st.sampled_from(["remove", "remove folder", "replace", "swap", "rename", "add", "flip", "cut"])):
        case "remove":
            file.unlink()
        case "remove folder":
            shutil.rmtree(data.draw(st.sampled_from(folders)))
        case "replace":
            shutil.copy(data.draw(st.sampled_from(files)), file.with_suffix(".new"))
            file.with_suffix(".new").replace(file)
        case "swap":
            other = data.draw(st.sampled_from(files))
            one, two = file.read_bytes(), other.read_bytes()
            file.write_bytes(two)
            other.write_bytes(one)
        case "rename":
            names = ["." + file.name, "x.parquet", "0" + file.name, file.name.replace("000000", "000007")]
            new = file.with_name(data.draw(st.sampled_from(names)))
            if not new.exists():
                file.rename(new)
        case "add":
            folder = data.draw(st.sampled_from(folders))
            name = data.draw(st.sampled_from([file.name, ".x.parquet", "x.parquet", "000009" + file.name[6:]]))
            if not (folder / name).exists():
                shutil.copy(file, folder / name)
        case "flip":
            content = file.read_bytes()
            if content:
                at = data.draw(st.integers(0, len(content) - 1))
                file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        case _:
            file.write_bytes(file.read_bytes()[: data.draw(st.integers(0, 2000))])


def _edit_views(root: Path, data: st.DataObject) -> None:
    view = data.draw(st.sampled_from((*catalog.VIEWS, "stored_event", "unrolled_stored_event", "rolled_daily_event")))
    statement = data.draw(
        st.sampled_from(
            [
                f"CREATE OR REPLACE VIEW {view} AS SELECT * FROM {view} WHERE false",
                f"CREATE OR REPLACE VIEW {view} AS SELECT 1 AS x",
                f"DROP VIEW {view}",
                f"CREATE TABLE t_{view} AS SELECT 1 AS x",
                "CREATE MACRO count(x) AS 42",
                "CREATE MACRO make_timestamp(x) AS NULL::TIMESTAMP",
                "CREATE MACRO read_parquet(x, union_by_name := true) AS TABLE SELECT 1 AS x",
            ]
        )
    )
    try:
        _sql(statement)(root)
    except duckdb.Error:
        # A view of itself; nothing was done.
        return


#: More of them: ROSE_ADVERSARY_EXAMPLES=10000 python -m pytest tests/ledger/test_verify_adversary.py -k adversary_does
EXAMPLES = int(os.environ.get("ROSE_ADVERSARY_EXAMPLES", "25"))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_an_adversary_does_is_named_or_changes_no_figure(
    pristine: Path, tmp_path_factory: pytest.TempPathFactory, figures: Any, data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("case") / "ledger"
    shutil.copytree(pristine, root)
    try:
        for _ in range(data.draw(st.integers(1, 2))):
            (_edit_views if data.draw(st.integers(0, 4)) == 0 else _apply)(root, data)
        assert verify(root).problems or _figures(root) == figures
    finally:
        shutil.rmtree(root.parent)


class _SeenByContent(Seen):
    """Remembers what bytes say, whichever file has them: a full verification, of bytes that were looked at before."""

    def facts(self, path: Path, kind: str, look: Callable[[bytes], Any]) -> Any:
        content = path.read_bytes()
        key = (kind, hashlib.sha256(content).hexdigest())
        if key not in self.known:
            self.known[key] = (), look(content)
        return self.known[key][1]

    def forget_unvisited(self) -> None:
        pass


@pytest.fixture(scope="session")
def kept_receipt(pristine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kept") / "receipt.json"
    path.write_bytes(receipt.take(pristine).content())
    return path


@pytest.fixture(scope="session")
def forger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key of the adversary's own."""
    return tmp_path_factory.mktemp("forger") / "own.key"


@pytest.fixture(scope="session")
def forgeries(pristine: Path, forger: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same ledger by its id, made anew and sound in itself: by the host's key and another, with other events."""
    made = []
    for name, power_mw, own in (("insider", 8, False), ("forged", 8, True), ("signed anew", 7, True)):
        root = tmp_path_factory.mktemp(name) / "ledger"
        root.mkdir()
        shutil.copy(pristine / layout.MARKER, root)
        with pytest.MonkeyPatch.context() as patch:
            if own:
                patch.setenv(keys.VARIABLE, str(forger))
            made.append(_make(root, power_mw))
    for factor in (1, 2):
        root = shutil.copytree(pristine, tmp_path_factory.mktemp("sums") / "ledger")
        with pytest.MonkeyPatch.context() as patch:
            # By the host's own key it is one more event of its writers, and its sums count what was archived.
            patch.setenv(keys.VARIABLE, str(forger))
            _forged_sums(root, factor)
        made.append(root)
    return made


def _overlay(root: Path, data: st.DataObject, forgeries: list[Path]) -> None:
    """Parts of another history, or all of it, in the place of the ledger's own."""
    other = data.draw(st.sampled_from(forgeries))
    names = sorted({str(path.relative_to(other)) for path in [*other.glob("*"), *other.glob("*/*")]} - {"locks"})
    everything = [str(path.relative_to(other)) for path in other.glob("*")]
    for name in data.draw(st.just(everything) | st.lists(st.sampled_from(names), min_size=1, max_size=8)):
        target = root / name
        if target.is_dir():
            shutil.rmtree(target)
        if (other / name).is_dir():
            shutil.copytree(other / name, target)
        elif target.parent.is_dir():
            shutil.copy(other / name, target)


def _rechain(root: Path, data: st.DataObject, forger: Path) -> None:
    """A writer's live segments from one of them on, written anew with other rows and all that names them."""
    own = data.draw(st.booleans())
    writer = data.draw(st.sampled_from(["a", "b", "compaction", "rollup"]))
    chain = list(links.back(root, writer))[::-1]
    first_live = next(number for number, link in enumerate(chain) if link.file.startswith("live/"))
    # With the host's own key nothing is added behind: that nobody can tell from what its writers do.
    first = data.draw(st.integers(first_live, len(chain) - 1))
    written = [(root / link.path).read_bytes() for link in chain[first:]]
    for link in chain[first:]:
        (root / link.path).unlink()
    header = segments.read_header(written[0])
    key = keys.load_or_make(forger if own else None)
    previous = chain[first - 1] if first else None
    tail = segments.Tail(
        writer, header.epoch, header.index, header.first_seq, header.previous_sha256,
        link=previous.value if previous else "", signed_by=previous.key if previous else "", key=key,
    )  # fmt: skip
    fewer = data.draw(st.integers(0, len(written)))
    for content in written[: len(written) - fewer]:
        header, table = segments.read_header(content), segments.read_rows(content, rows.schema().names)
        if header.index == 0:
            tail = segments.begin_epoch(root, dataclasses.replace(tail, epoch=header.epoch - 1))
            continue
        if "power_mw" in table.column_names and data.draw(st.booleans()):
            column = table.schema.get_field_index("power_mw")
            table = table.set_column(column, "power_mw", pa.array([data.draw(st.integers(0, 9))] * table.num_rows))
        tail = segments.append(root, tail, table)
    for _ in range(data.draw(st.integers(0, 2)) if own else 0):
        tail = _append(root, tail, 2)


def _rebuild_records(root: Path, data: st.DataObject, forger: Path) -> None:
    """What speaks of the segments, made to agree with what lies there: registry, heads, verification, views, sums."""
    key = keys.load_or_make(forger)
    assert key is not None
    for step in data.draw(st.lists(st.sampled_from(["registry", "heads", "verified", "views"]), max_size=4)):
        match step:
            case "registry":
                (root / registry.FILE).unlink(missing_ok=True)
                for writer in layout.writers(root):
                    registry.note(root, writer, key.public, key)
            case "heads":
                for writer in layout.writers(root):
                    segments.recover(root, writer)
            case "verified":
                shutil.rmtree(root / "verified", ignore_errors=True)
            case _:
                catalog.refresh(root)


def _forged_sums(root: Path, factor: int) -> None:
    """Daily sums that count each event so often, and an event of a roll-up that names them."""
    newest = rolled.newest(root)
    assert newest is not None
    path = root / newest.folder / "daily_event.parquet"
    pq.write_table(pa.concat_tables([pq.read_table(path)] * factor), path)
    coverage = json.loads((root / newest.folder / "coverage.json").read_bytes())
    coverage["files"]["daily_event"] = hashlib.sha256(path.read_bytes()).hexdigest()
    content = json.dumps(coverage, indent=1).encode()
    (root / newest.folder / "coverage.json").write_bytes(content)
    detail = {"generation": newest.generation, "coverage_sha256": hashlib.sha256(content).hexdigest()}
    with LedgerWriter.open(root, "rollup", "ledger") as log:
        log.record(Ledger(action="rolled_up", detail_json=json.dumps(detail)), durable=True)


def _read_by_readers(root: Path) -> str:
    """A hash of all that any view is made of."""
    digest = hashlib.sha256()
    for path in sorted(
        path for folder in ("live", "compacted", "archived", FOLDER) for path in (root / folder).rglob("*")
    ):
        if path.is_file():
            digest.update(f"{path.relative_to(root)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


@pytest.fixture(scope="session")
def read_by_readers(pristine: Path) -> str:
    return _read_by_readers(pristine)


#: What somebody who forges meets in a folder that an act before left damaged.
_IN_THE_WAY = (LedgerError, OSError, pa.ArrowException, ValueError, KeyError, IndexError, StopIteration, AssertionError)
_SEEN = _SeenByContent()


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_somebody_with_keys_does_shows_against_a_receipt_or_changes_no_figure(
    pristine: Path,
    tmp_path_factory: pytest.TempPathFactory,
    figures: Any,
    kept_receipt: Path,
    forger: Path,
    forgeries: list[Path],
    read_by_readers: str,
    data: st.DataObject,
) -> None:
    """More than the adversary before: chains written anew with own keys and the host's, and all that names them."""
    root = tmp_path_factory.mktemp("case") / "ledger"
    shutil.copytree(pristine, root)
    try:
        for _ in range(data.draw(st.integers(1, 3))):
            act = data.draw(st.sampled_from(["rechain", "overlay", "records", "apply", "views", "priced"]))
            with suppress(*_IN_THE_WAY):
                match act:
                    case "rechain":
                        _rechain(root, data, forger)
                    case "overlay":
                        _overlay(root, data, forgeries)
                    case "records":
                        _rebuild_records(root, data, forger)
                    case "apply":
                        _apply(root, data)
                    case "views":
                        _edit_views(root, data)
                    case _:
                        (root / layout.PRICING).write_bytes(b"sums of somebody")
        named = continuation.read([kept_receipt])
        found = verify(root, seen=_SEEN, marks=continuation.marks(named))
        if found.ok and not continuation.check(found, named).problems:
            # Where no file that a reader reads was changed, there is nothing to add up.
            assert _read_by_readers(root) == read_by_readers or _figures(root) == figures
            assert not (root / layout.PRICING).exists(), "`rose report` would believe it"
    finally:
        shutil.rmtree(root.parent)
