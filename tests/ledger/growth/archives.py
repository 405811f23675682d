"""What the tests of the archive read of a ledger and of its copies."""

import json

import fsspec
import polars as pl
import pyarrow.dataset

from rose.clock import utc_us
from rose.ledger import catalog, layout
from tests.ledger.conftest import ask

DAY_US = 86_400_000_000
#: The first event of the ledger these tests use; each epoch of two events is a day later.
FIRST_US = 1_700_000_000_000_000


def seqs(root):
    return [seq for (seq,) in ask(root, "SELECT seq FROM event WHERE writer = 'w' ORDER BY seq")]


def states(root):
    return [part.state for part in layout.chain(root, "w")]


def details(root, action):
    with catalog.connect(root) as connection:
        found = connection.execute("SELECT detail_json FROM event WHERE action = ? ORDER BY writer, seq", [action])
        return [json.loads(detail) for (detail,) in found.fetchall()]


def days_since(n):
    """An age that the first `n` of the epochs' days are older than, and the others are not."""
    return (utc_us() - FIRST_US - n * DAY_US) / DAY_US + 0.5


def count_by_engines(folder, storage):
    fs, path = fsspec.core.url_to_fs(folder, **storage)
    files = fs.glob(f"{path}/compacted/*/*.parquet")
    counts = {pyarrow.dataset.dataset(files, filesystem=fs, format="parquet").count_rows(use_threads=False)}
    total = 0
    for file in files:
        total += pl.read_parquet(fs.cat_file(file)).height
    return counts | {total}
