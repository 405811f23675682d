"""Logs that are written to for months."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rose.runtime.errors import FolderError
from rose.runtime.service import logs


def test_an_engine_s_log_is_emptied_where_it_lies_and_goes_on(tmp_path):
    log = tmp_path / "engine.log"
    with log.open("ab") as output:
        program = "import sys\nfor line in sys.stdin: print(line * 100, end='', flush=True)"
        engine = subprocess.Popen(
            [sys.executable, "-uc", program], stdin=subprocess.PIPE, stdout=output, text=True, bufsize=1
        )
    assert engine.stdin is not None
    engine.stdin.write("before\n")
    while log.stat().st_size < 700:
        pass
    assert logs.rotate(tmp_path, bytes_max=699) == [log]
    assert (tmp_path / "engine.old.log").read_text() == "before\n" * 100
    engine.stdin.write("after\n")
    engine.stdin.close()
    assert engine.wait() == 0
    # It begins anew, with no hole where the old lines were.
    assert log.read_text() == "after\n" * 100
    assert logs.rotate(tmp_path, bytes_max=699) == []


def test_a_process_s_own_log_keeps_the_last_few(tmp_path):
    say = logs.log_to(tmp_path / "logs" / "host.log", bytes_max=200)
    for number in range(100):
        say(f"line {number}")
    assert logs.log_to(tmp_path / "logs" / "host.log", bytes_max=200) is not None
    names = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert names == ["host.log", *(f"host.log.{number}" for number in range(1, logs.LOGS_KEPT + 1))]
    assert "line 99" in (tmp_path / "logs" / "host.log").read_text()


def test_a_folder_of_logs_that_cannot_be_made_is_named_with_the_field_that_it_is_of(tmp_path):
    (tmp_path / "logs").touch()
    with pytest.raises(FolderError, match=f"state: {tmp_path}/logs cannot be made .* set `state` "):
        logs.log_to(tmp_path / "logs" / "keeper.log")
