"""What somebody may do to the files of a ledger who has no key: one thing at a time, as hypothesis draws it."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from rose.ledger.files import catalog, layout
from tests.long_form import usual

Act = Callable[[Path], Any]

#: More of them: ROSE_ADVERSARY_EXAMPLES=5000 python -m pytest tests/ledger/adversary -k whatever --hypothesis-seed 1
EXAMPLES = int(os.environ.get("ROSE_ADVERSARY_EXAMPLES", usual("4", long="200")))
many = settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def sql_statement(statement):
    def edit(root):
        with duckdb.connect(root / layout.CATALOG) as connection:
            connection.execute(statement)

    return edit


def change_files(root, data):
    files = sorted(
        path
        for folder in ("live", "compacted", "archived", "rollup", "heads", "writers.jsonl")
        for path in ([root / folder] if (root / folder).is_file() else (root / folder).rglob("*"))
        if path.is_file()
    )
    writers = {root / "live/a", root / "live/b", root / "compacted/a"}
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


def edit_views(root, data):
    internal = ("device_slice", "stored_event", "unrolled_stored_event", "rolled_daily_event")
    view = data.draw(st.sampled_from((*catalog.VIEWS, *(f"internal.{name}" for name in internal))))
    statement = data.draw(
        st.sampled_from(
            [
                f"CREATE OR REPLACE VIEW {view} AS SELECT * FROM {view} WHERE false",
                f"CREATE OR REPLACE VIEW {view} AS SELECT 1 AS x",
                f"DROP VIEW {view}",
                f"CREATE TABLE {view}_ AS SELECT 1 AS x",
                "CREATE MACRO count(x) AS 42",
                "CREATE MACRO make_timestamp(x) AS NULL::TIMESTAMP",
                "CREATE MACRO read_parquet(x, union_by_name := true) AS TABLE SELECT 1 AS x",
            ]
        )
    )
    try:
        sql_statement(statement)(root)
    except duckdb.Error:
        return
