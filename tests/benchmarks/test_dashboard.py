from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks.dashboard import browser

ROOT = Path(__file__).parents[2]

measured = [
    pytest.mark.skipif(not browser.is_there(), reason=browser.MISSING),
    pytest.mark.long,
]


def marked(test: Any) -> Any:
    for mark in measured:
        test = mark(test)
    return test


def test_the_documented_times_are_those_of_the_kept_report() -> None:
    (file,) = (ROOT / "benchmarks" / "results").glob("dashboard-*.json")
    claims = json.loads(file.read_text())["claims"]
    text = (ROOT / "docs" / "dashboard.md").read_text()
    (head,) = [line for line in text.splitlines() if line.startswith("| | Overview, first figure")]
    rows = text.partition(head)[2].split("\n\n")[0].splitlines()[2:]
    for row in rows:
        size, overview, slowest, news, choice, sessions = [cell.strip() for cell in row.strip("|").split("|")]
        own = {
            claim["name"].partition(": ")[2]: claim["value"] for claim in claims if claim["name"].startswith(f"{size}:")
        }
        pages = [value for name, value in own.items() if name.endswith(", first figure") and "after" not in name]
        expected = (
            own["Overview, first figure"],
            max(pages),
            own["Overview after 10,000 more events, first figure"],
            own["a choice in the bar"],
            own["10 sessions at once, the last"],
        )
        assert [overview, slowest, news, choice, sessions] == [f"{value:.2f} s" for value in expected]
    assert len(rows) == 2


def run(module: str, *options: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.{module}", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr


@marked
@pytest.mark.parametrize("module", ["dashboard", "dashboard.watch"])
def test_what_a_reader_waits_for_and_sees_is_measured(module: str, tmp_path: Path) -> None:
    run(module, "--quick", "--json", str(tmp_path / "report.json"))
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["provenance"] == "simulated"
    assert len(report["claims"]) >= 10
    assert all(claim["value"] == 0 for claim in report["claims"] if claim["unit"] in ("errors", "looks"))


@marked
def test_every_page_has_its_pictures(tmp_path: Path) -> None:
    run("dashboard.screenshots", "--to", str(tmp_path))
    made = {file.name for file in tmp_path.iterdir()}
    assert made == {file.name for file in (ROOT / "docs" / "images").iterdir()}
    for name in made:
        with Image.open(tmp_path / name) as picture:
            assert picture.width == 1280
            assert len(picture.resize((200, 200)).getcolors(40_000) or []) > 20, f"{name} shows next to nothing"
