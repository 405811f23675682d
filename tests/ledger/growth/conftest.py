import fsspec
import pytest

from rose.ledger import layout, segments
from rose.ledger.growth import compaction, rollup
from rose.ledger.writer import LedgerWriter
from tests.ledger.conftest import copied
from tests.ledger.growth.archives import DAY_US, FIRST_US


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
    """A ledger of three compacted files and an open epoch, all of them old, and rolled up."""
    root = tmp_path_factory.mktemp("archivable") / "ledger"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SEGMENTS_PER_EPOCH", 2)
        for stretch in (range(6), range(6, 8), range(8, 10), range(10, 12)):
            with LedgerWriter.open(root, "w", "r") as writer:
                for n in stretch:
                    writer.record(lease(lease_id=f"l{n}", at_us=FIRST_US + n // 2 * DAY_US), durable=True)
            if stretch.stop < 12:
                compaction.compact(root, grace_s=0)
    rollup.roll_up(root)
    assert [part.state for part in layout.parts(root, "w")].count("compacted") == 3
    return root


@pytest.fixture
def archivable(archivable_made, tmp_path):
    return copied(archivable_made, tmp_path / "ledger")
