from __future__ import annotations

from pathlib import Path

from tests.pricing.reconcile import vendor_file


def test_the_sample_invoice_is_what_its_program_makes(tmp_path: Path) -> None:
    vendor_file.make(tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == vendor_file.FILE.read_bytes()
