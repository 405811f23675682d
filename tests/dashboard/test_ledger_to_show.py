from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dashboard
from rose.errors import UserError
from rose.ledger import layout
from rose.ledger.layout import LedgerError


def test_importing_the_package_loads_no_streamlit() -> None:
    code = "import sys, dashboard; sys.exit('streamlit' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_named_folder_is_shown_or_refused(tmp_path: Path) -> None:
    named = layout.create(tmp_path / "named")
    assert dashboard.ledger_to_show(named) == named
    with pytest.raises(LedgerError, match="is not a ledger") as caught:
        dashboard.ledger_to_show(tmp_path / "other")
    assert isinstance(caught.value, UserError)


def test_what_is_shown_when_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sample = tmp_path / "installed" / "sample_traces"
    monkeypatch.setattr(dashboard.resources, "files", lambda _: sample)
    with pytest.raises(UserError, match="there is no ledger"):
        dashboard.ledger_to_show(None)
    layout.create(sample / "ledger")
    assert dashboard.ledger_to_show(None) == sample / "ledger"
    older, newer = layout.create(tmp_path / "runs" / "a"), layout.create(tmp_path / "runs" / "b")
    os.utime(older / layout.MARKER, (1, 1))
    assert dashboard.ledger_to_show(None) == newer
    here = layout.create(tmp_path / "ledger")
    os.utime(here / layout.MARKER, (1, 1))
    assert dashboard.ledger_to_show(None) == here
