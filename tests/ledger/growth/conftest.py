import json

import fsspec
import polars as pl
import pyarrow.dataset
import pytest

from rose.clock import utc_us
from rose.ledger.files import layout, segments
from rose.ledger.growth import compaction, rollup
from rose.ledger.ledger import Ledger
from tests.ledger.conftest import ask, copied, record

DAY_US = 86_400_000_000
#: The first event of the ledger these tests use; each epoch of two events is a day later.
FIRST_US = 1_700_000_000_000_000


@pytest.fixture
def s3(monkeypatch):
    """A file system of a server that speaks S3's protocol, which fsspec's configuration names."""
    server_of = pytest.importorskip("moto.server", reason="needs an S3 server: pip install 'moto[server]' s3fs")
    s3fs = pytest.importorskip("s3fs", reason="needs an S3 client: pip install 'moto[server]' s3fs")
    server = server_of.ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    options = {"key": "key", "secret": "secret", "endpoint_url": f"http://{host}:{port}"}
    monkeypatch.setitem(fsspec.config.conf, "s3", options)
    yield s3fs.S3FileSystem(**options)
    server.stop()


@pytest.fixture(scope="session")
def archivable_made(tmp_path_factory, lease):
    root = tmp_path_factory.mktemp("archivable") / "ledger"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SEGMENTS_PER_EPOCH", 2)
        for stretch in (range(6), range(6, 8), range(8, 10), range(10, 12)):
            record(root, *(lease(lease_id=f"l{n}", at_us=FIRST_US + n // 2 * DAY_US) for n in stretch))
            if stretch.stop < 12:
                compaction.compact(Ledger(root), grace_s=0)
    rollup.roll_up(Ledger(root))
    assert [part.state for part in layout.parts(root, "w")].count("compacted") == 3
    return root


@pytest.fixture
def root(archivable_made, tmp_path):
    return copied(archivable_made, tmp_path / "ledger")


def seqs(root):
    return [seq for (seq,) in ask(root, "SELECT seq FROM event WHERE writer = 'w' ORDER BY seq")]


def states(root):
    return [part.state for part in layout.chain(root, "w")]


def details(root, action):
    found = ask(root, "SELECT detail_json FROM event WHERE action = ? ORDER BY writer, seq", [action])
    return [json.loads(detail) for (detail,) in found]


def days_since(n):
    """An age that the first `n` of the epochs' days are older than, and the others are not."""
    return (utc_us() - FIRST_US - n * DAY_US) / DAY_US + 0.5


def count_by_engines(folder, storage):
    fs, path = fsspec.core.url_to_fs(folder, **storage)
    files = fs.glob(f"{path}/compacted/*/*.parquet")
    counts = {pyarrow.dataset.dataset(files, filesystem=fs, format="parquet").count_rows(use_threads=False)}
    return counts | {sum(pl.read_parquet(fs.cat_file(file)).height for file in files)}
