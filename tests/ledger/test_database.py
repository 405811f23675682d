"""DuckDB, as every part of ROSE opens it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_progress_bar_is_drawn_into_json_by_a_spawned_process() -> None:
    ask = "connect().execute(\"SELECT current_setting('enable_progress_bar')\").fetchone()[0]"
    code = f"import duckdb; from rose.ledger import database; print(duckdb.{ask}, database.{ask})"
    ours, terminal = os.openpty()
    try:
        subprocess.run(
            [sys.executable, "-c", code], check=True, stdin=terminal, stdout=terminal, stderr=terminal, cwd=ROOT
        )
        said = os.read(ours, 4096).decode().split()
    finally:
        os.close(ours)
        os.close(terminal)
    # The first says that there is something to switch off here.
    assert said == ["True", "False"]


def test_nothing_else_opens_duckdb() -> None:
    opens = re.compile(r"\bduckdb\.connect\(")
    sources = [*ROOT.glob("rose/**/*.py"), *ROOT.glob("dashboard/**/*.py")]
    assert [path.name for path in sources if opens.search(path.read_text())] == ["database.py"]
