"""An adversary who has the folder, the host's key and one of its own: what a receipt that lies elsewhere shows."""

import dataclasses
import hashlib
import itertools
import json
import shutil
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.events import LedgerAction
from rose.ledger.evidence import continuation, receipt
from rose.ledger.files import catalog, examine, keys, layout, registry, rolled, rows, segments
from rose.ledger.files.examine import Seen
from rose.ledger.files.layout import LedgerError
from rose.ledger.files.rolled import FOLDER
from rose.ledger.ledger import Ledger
from tests.ledger.adversary.acts import change_files, edit_views, many
from tests.ledger.adversary.histories import append, figures_of, make, report_of
from tests.ledger.conftest import record

#: Of the ledgers that seem sound, each so many-th is reported too: that takes longer than all the rest.
REPORT_EVERY = 20


class _SeenByContent(Seen):
    """Remembers what bytes say, whichever file has them: a full verification, of bytes that were looked at before."""

    def __init__(self):
        super().__init__()
        # One that knows nothing is kept for the next process, by the paths of files.
        self.entries["", ""] = (), None

    def facts(self, path, kind, look):
        content = path.read_bytes()
        key = (kind, hashlib.sha256(content).hexdigest())
        if key not in self.entries:
            self.entries[key] = (), look(content)
        return self.entries[key][1]

    def once(self, path, kind, look):
        if kind not in self.entries:
            self.entries[kind] = (), look()
        return self.entries[kind][1]

    def forget_unvisited(self):
        pass


@pytest.fixture(scope="session")
def kept_receipt(place, tmp_path_factory):
    path = tmp_path_factory.mktemp("kept") / "receipt.json"
    path.write_bytes(receipt.take(Ledger(place.kept)).content())
    return path


@pytest.fixture(scope="session")
def forger(tmp_path_factory):
    return tmp_path_factory.mktemp("forger") / "own.key"


@pytest.fixture(scope="session")
def forgeries(place, forger, tmp_path_factory):
    """The same ledger by its id, made anew and sound in itself: by the host's key and another, with other events."""
    made = []
    for name, power_mw, own in (("insider", 8, False), ("forged", 8, True), ("signed anew", 7, True)):
        root = tmp_path_factory.mktemp(name) / "ledger"
        root.mkdir()
        shutil.copy(place.kept / layout.MARKER, root)
        with pytest.MonkeyPatch.context() as patch:
            if own:
                patch.setenv(keys.VARIABLE, str(forger))
            made.append(make(root, power_mw))
    for factor in (1, 2):
        root = shutil.copytree(place.kept, tmp_path_factory.mktemp("sums") / "ledger")
        with pytest.MonkeyPatch.context() as patch:
            # By the host's own key it is one more event of its writers, and its sums count what was archived.
            patch.setenv(keys.VARIABLE, str(forger))
            _forged_sums(root, factor)
        made.append(root)
    return made


def _overlay(root, data, forgeries):
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


def _links(root, writer):
    found = []
    for part in layout.chain(root, writer):
        if part.state != "live":
            found += examine.links((root / part.manifest).read_bytes())
            continue
        for name in segments.segment_names(root / part.folder):
            header = segments.read_header((root / part.folder / name).read_bytes())
            found.append(segments.link(header, segments.sha256_in(name)))
    return found


def _rechain(root, data, forger):
    own = data.draw(st.booleans())
    writer = data.draw(st.sampled_from(["a", "b", "compaction", "rollup"]))
    chain = _links(root, writer)
    first_live = next(number for number, link in enumerate(chain) if (root / link.file).exists())
    # With the host's own key nothing is added behind: that nobody can tell from what its writers do.
    first = data.draw(st.integers(first_live, len(chain) - 1))
    written = [(root / link.file).read_bytes() for link in chain[first:]]
    for link in chain[first:]:
        (root / link.file).unlink()
    header = segments.read_header(written[0])
    key = keys.load_or_make(forger if own else None)
    previous = chain[first - 1] if first else None
    tail = segments.Tail(writer, header.epoch, header.index, header.first_seq, header.previous_sha256, key=key)
    if previous:
        tail = dataclasses.replace(tail, link=previous.chain_sha256, signed_by=previous.key)
    fewer = data.draw(st.integers(0, len(written)))
    for content in written[: len(written) - fewer]:
        header, table = segments.read_header(content), segments.read_rows(content, rows.schema().names)
        if header.index == 0:
            tail = segments.begin_epoch(root, dataclasses.replace(tail, epoch=header.epoch - 1))
            continue
        for name in ("power_mw", "output_tokens"):
            if table[name].null_count < table.num_rows and data.draw(st.booleans()):
                column = table.schema.get_field_index(name)
                value = pa.scalar(data.draw(st.integers(0, 9)), pa.int64())
                table = table.set_column(column, name, pc.if_else(pc.is_valid(table[name]), value, None))
        tail = segments.write_next(root, tail, table)
    for _ in range(data.draw(st.integers(0, 2)) if own else 0):
        tail = append(root, tail, 2)


def _rebuild_records(root, data, forger):
    """What speaks of the segments, made to agree with what lies there: registry, heads, verification, views, sums."""
    key = keys.load_or_make(forger)
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


def _forged_sums(root, factor):
    newest = rolled.newest(root)
    path = root / newest.folder / "daily_event.parquet"
    pq.write_table(pa.concat_tables([pq.read_table(path)] * factor), path)
    coverage = json.loads((root / newest.folder / "coverage.json").read_bytes())
    coverage["files"]["daily_event"] = hashlib.sha256(path.read_bytes()).hexdigest()
    content = json.dumps(coverage, indent=1).encode()
    (root / newest.folder / "coverage.json").write_bytes(content)
    detail = {"generation": newest.generation, "coverage_sha256": hashlib.sha256(content).hexdigest()}
    record(root, LedgerAction(action="rolled_up", detail_json=json.dumps(detail)), writer="rollup", run_id="ledger")


def _read_by_readers(root):
    digest = hashlib.sha256()
    for path in sorted(
        path for folder in ("live", "compacted", "archived", FOLDER) for path in (root / folder).rglob("*")
    ):
        if path.is_file():
            digest.update(f"{path.relative_to(root)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


@pytest.fixture(scope="session")
def read_by_readers(place):
    return _read_by_readers(place.kept)


#: What somebody who forges meets in a folder that an act before left damaged.
_IN_THE_WAY = (LedgerError, OSError, pa.ArrowException, ValueError, KeyError, IndexError, StopIteration, AssertionError)
_SEEN = _SeenByContent()
_SOUND = itertools.count()


@pytest.fixture(scope="session")
def reported(place):
    with place.copied() as root:
        said = report_of(root, _SEEN)
    assert said["report"]["glance"], said
    return said


@pytest.mark.long
@many
@given(data=st.data())
def test_whatever_somebody_with_keys_does_shows_against_a_receipt_or_changes_no_figure(
    place, figures, reported, kept_receipt, forger, forgeries, read_by_readers, data
):
    with place.copied() as root:
        for _ in range(data.draw(st.integers(1, 3))):
            act = data.draw(st.sampled_from(["rechain", "overlay", "records", "files", "views", "priced"]))
            with suppress(*_IN_THE_WAY):
                match act:
                    case "rechain":
                        _rechain(root, data, forger)
                    case "overlay":
                        _overlay(root, data, forgeries)
                    case "records":
                        _rebuild_records(root, data, forger)
                    case "files":
                        change_files(root, data)
                    case "views":
                        edit_views(root, data)
                    case _:
                        (root / layout.PRICING).write_bytes(b"sums of somebody")
        named = continuation.read([kept_receipt])
        found = Ledger(root).verify(marks=continuation.marks(named))
        if found.ok and not continuation.check(found, named).problems:
            assert not (root / layout.PRICING).exists(), "`rose report` would believe it"
            assert _read_by_readers(root) == read_by_readers or figures_of(root) == figures
            if next(_SOUND) % REPORT_EVERY == 0:
                assert report_of(root, _SEEN) == reported
