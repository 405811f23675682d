from __future__ import annotations

from pathlib import Path

import pytest

from rose.pricing.invoices import pdf
from rose.pricing.money import PricingError

PAGE = "<!doctype html><title>one</title><p>one page</p>"


def has_browser() -> bool:
    try:
        return bool(pdf.browser())
    except PricingError:
        return False


def program(folder: Path, text: str) -> None:
    path = folder / "chromium"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_without_a_chromium_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PricingError, match=r"none of chromium, .* is on PATH: install one"):
        pdf.print_pdf(PAGE, tmp_path / "a.pdf")


def test_a_chromium_that_fails_is_named_with_what_it_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "echo 'no display' >&2; exit 3")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PricingError, match="chromium made no PDF: no display"):
        pdf.print_pdf(PAGE, tmp_path / "a.pdf")
    assert not (tmp_path / "a.pdf").exists()
    program(tmp_path, "exit 3")
    with pytest.raises(PricingError, match="exit code 3"):
        pdf.print_pdf(PAGE, tmp_path / "a.pdf")


@pytest.mark.skipif(not has_browser(), reason="needs a Chromium on PATH")
def test_a_page_becomes_a_pdf(tmp_path: Path) -> None:
    pdf.print_pdf(PAGE, tmp_path / "a.pdf")
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
