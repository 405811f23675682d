from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import dashboard
from rose.ledger import layout
from rose.ledger.layout import LedgerError


def test_importing_the_package_loads_no_streamlit() -> None:
    code = "import sys, dashboard; sys.exit('streamlit' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_named_ledger_is_shown_else_that_of_the_folder_else_the_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sample = tmp_path / "installed" / "sample_traces"
    monkeypatch.setattr(dashboard.resources, "files", lambda _: sample)
    with pytest.raises(LedgerError, match="there is no ledger"):
        dashboard.ledger_to_show(None)
    layout.create(sample / "ledger")
    assert dashboard.ledger_to_show(None) == sample / "ledger"
    here, named = layout.create(tmp_path / "ledger"), layout.create(tmp_path / "named")
    assert dashboard.ledger_to_show(None) == here
    assert dashboard.ledger_to_show(named) == named
    with pytest.raises(LedgerError, match="is not a ledger"):
        dashboard.ledger_to_show(tmp_path / "other")
