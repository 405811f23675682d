from __future__ import annotations

from pathlib import Path

from rose.ledger import layout
from rose.ledger.checks import schema_file


def test_whichever_byte_is_wrong_the_file_is_sound_or_its_fault_is_said(tmp_path: Path) -> None:
    schema_file.write(tmp_path)
    path = tmp_path / layout.SCHEMA_FILE
    whole = path.read_bytes()
    said = set()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        said.add((schema_file.fault(path) or "none").partition(":")[0])
    assert "it cannot be read" in said
    schema_file.write(tmp_path)
    assert schema_file.fault(path) is None
