import datetime
import struct

import duckdb
import pytest

from rose.ledger.files import layout, rolled
from rose.ledger.growth import rollup
from rose.ledger.ledger import Ledger
from rose.ledger.verify import sum_faults
from tests.ledger.conftest import ask
from tests.ledger.evidence import ledgers


@pytest.fixture
def root(tmp_path):
    made = layout.create(tmp_path / "ledger")
    ledgers.write(made, "a", epochs=2)
    rollup.roll_up(Ledger(made))
    return made


def days(path, where="true"):
    return [day for (day,) in duckdb.execute(f"SELECT day FROM read_parquet('{path}') WHERE {where}").fetchall()]


def test_sums_of_any_kind_are_sound_as_they_are_written(root):
    assert rolled.newest(root).writers
    assert sum_faults(root) == ([], None, ())


def test_a_footer_that_hides_sums_from_readers_is_named(root):
    (path,) = root.glob("rollup/*/daily_event.parquet")
    content = path.read_bytes()
    (day, *_) = days(path)
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    stored = struct.pack("<i", (day - datetime.date(1970, 1, 1)).days)
    assert stored in content[begin:]
    path.write_bytes(content[:begin] + content[begin:].replace(stored, struct.pack("<i", 77)))
    assert day in days(path), "the rows are as they were"
    assert days(path, f"day = DATE '{day}'") == [], "a reader trusts the footer"
    assert sum_faults(root).problems == [
        "rollup/000000/daily_event.parquet: the statistics of column 'day' do not match its values: they were changed"
    ]


def test_sums_of_other_events_are_named(root):
    (path,) = root.glob("rollup/*/daily_event.parquet")
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE forged AS FROM '{path}'")
        connection.execute("UPDATE forged SET events = events + 1 WHERE kind = 'power'")
        connection.execute(f"COPY forged TO '{path}' (FORMAT parquet)")
    problems = sum_faults(root).problems
    assert problems == ["rollup/000000/daily_event.parquet: 2 rows are not the sums of the events that they count"]


def test_a_roll_up_before_any_epoch_is_closed_sums_nothing(tmp_path):
    root = layout.create(tmp_path / "ledger")
    ledgers.write(root, "a", epochs=1)
    rollup.roll_up(Ledger(root))
    coverage = rolled.newest(root)
    assert coverage is None or coverage.writers == {}
    assert sum_faults(root) == ([], None, ())
    stored = ask(root, "SELECT count(*) FROM event WHERE writer = 'a'")
    assert ask(root, "SELECT sum(events) FROM daily_event WHERE writer = 'a'") == stored
