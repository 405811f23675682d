from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.dashboard import browser
from tests.long_form import LONG

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.skipif(not browser.is_there(), reason=browser.MISSING),
    pytest.mark.skipif(not LONG, reason="each takes a minute or two: set ROSE_TESTS_LONG=1"),
]


def run(module: str, *options: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.{module}", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["dashboard", "dashboard.watch"])
def test_what_a_reader_waits_for_and_sees_is_measured(module: str, tmp_path: Path) -> None:
    run(module, "--quick", "--json", str(tmp_path / "report.json"))
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["provenance"] == "simulated"
    assert len(report["claims"]) >= 10
    assert all(claim["value"] == 0 for claim in report["claims"] if claim["unit"] in ("errors", "looks"))


def test_every_page_has_its_pictures(tmp_path: Path) -> None:
    run("dashboard.screenshots", "--to", str(tmp_path))
    made = {file.name for file in tmp_path.iterdir()}
    assert made == {file.name for file in (ROOT / "docs" / "images").iterdir()}
    for name in made:
        with Image.open(tmp_path / name) as picture:
            assert picture.width in (390, 1280)
            assert len(picture.resize((200, 200)).getcolors(40_000) or []) > 20, f"{name} shows next to nothing"
