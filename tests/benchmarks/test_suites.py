"""Each suite's quick form runs and claims something, and the figures that pages quote are those of kept reports."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from benchmarks import shared
from benchmarks.coverage import __main__ as coverage
from benchmarks.coverage.shown import Shown
from benchmarks.gateway import __main__ as gateway
from benchmarks.gateway import sides
from benchmarks.ledger import scale
from benchmarks.traffic import MIX, Fleet, close_epochs
from rose.accept.report import ROOT, Report
from rose.ledger.ledger import Ledger
from rose.pricing import charges
from rose.pricing.price_books import pricebook
from tests.dashboard import browser
from tests.runtime import hosts

RESULTS = ROOT / "benchmarks" / "results"
SEEN_BY_A_BROWSER = pytest.mark.skipif(not browser.is_there(), reason=browser.MISSING)
ON_HOSTS = pytest.mark.skipif(hosts.missing() is not None, reason=str(hosts.missing()))
WITH_ROUTER = pytest.mark.skipif(not find_spec("sglang_router"), reason=f"install {sides.ROUTER} beside ROSE")
TWO_CORES = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the device and the host need a core each")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("suite", "options"),
    [
        ("pricing", ["--folder", "."]),
        ("ledger", ["--folder", "."]),
        ("transfer", ["--folder", "."]),
        ("coverage", ["--ledgers", "12"]),
        ("controller", []),
        pytest.param("gateway", [], marks=WITH_ROUTER),
        pytest.param("dashboard", ["--folder", "."], marks=SEEN_BY_A_BROWSER),
        pytest.param("coserve", [], marks=[pytest.mark.live, TWO_CORES]),
        pytest.param("faults.runs", ["--engines", "stand-in"], marks=[pytest.mark.live, ON_HOSTS]),
    ],
)
def test_the_quick_form_runs_and_claims(tmp_path: Path, suite: str, options: list[str]) -> None:
    command = [sys.executable, "-m", f"benchmarks.{suite}", "--quick", "--json", "report.json", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    claimed = json.loads((tmp_path / "report.json").read_text())["claims"]
    counted = [claim for claim in claimed if claim["target"] == 0]
    # What must not happen at all holds on any machine; times are another matter.
    assert [claim for claim in counted if not claim["holds"]] == []
    assert len(claimed) > 1
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"], "a suite leaves nothing but its report"


def test_a_missing_router_is_named_with_the_way_to_install_it(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["gateway", "--quick", "--router", "/bin/false"])
    with pytest.raises(SystemExit) as ended:
        gateway.main()
    assert ended.value.code == 1
    assert sides.ROUTER in capsys.readouterr().err


def test_parts_are_measured_in_folders_that_are_removed(tmp_path: Path) -> None:
    report = Report("suite", quick=True)

    def part(report: Report, folder: Path) -> None:
        (folder / "file").write_text("x")
        report.claim(folder.name, 1, "x", 0, "lower")

    with shared.measured(report, None, tmp_path) as folder:
        shared.measure_parts(report, {"one": part, "two": part}, folder, ["two"])
    assert [(claim.name, claim.holds) for claim in report.claims] == [("two", False)]
    assert list(tmp_path.iterdir()) == []


def test_a_suite_that_fails_keeps_what_it_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("suite", quick=True)

    def fail(error: BaseException) -> None:
        with shared.measured(report, tmp_path / "report.json"):
            report.claim("a figure", 1, "s", 2, "lower")
            raise error

    for error, code in ((KeyboardInterrupt(), 130), (shared.UserError("port: 80 is taken"), 1)):
        with pytest.raises(SystemExit) as ended:
            fail(error)
        assert ended.value.code == code
    assert len(json.loads((tmp_path / "report.json").read_text())["claims"]) == 2
    assert "port: 80 is taken" in capsys.readouterr().err


def test_growth_compares_the_last_third_with_the_one_before() -> None:
    # What a process takes as it begins is not growth.
    assert shared.growth([1, 1, 1, 100, 100, 100, 100, 100, 100]) == 1.0
    assert shared.growth([100] * 6 + [150] * 3) == 1.5
    assert shared.growth([1, 2]) is None


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Fleet]:
    root, fleet = tmp_path_factory.mktemp("made") / "ledger", Fleet(16, 400)
    fleet.fill(root)
    close_epochs(root)
    return root, fleet


def test_the_made_up_fleet_adds_up_and_can_be_priced(made: tuple[Path, Fleet]) -> None:
    root, fleet = made
    assert Ledger(root).verify().problems == []
    priced = charges.price(Ledger(root), pricebook.load("example"))
    provisioned_ns = fleet.devices * fleet.seconds * 10**9
    assert priced.frame.filter(kind="capacity")["ns"].sum() == pytest.approx(provisioned_ns, rel=1e-3)
    assert 0 < priced.frame.filter(bucket="unaccounted")["ns"].sum() < 0.01 * provisioned_ns
    assert priced.frame.filter(fate="accepted")["tokens"].sum() > 0
    events = [event for host in range(4) for event in fleet.batch(host, 0, 60)]
    share = {kind: sum(event.kind == kind for event in events) / len(events) for kind in MIX}
    assert share == pytest.approx(MIX, abs=0.02)


def test_pages_of_the_dashboard_can_be_timed(made: tuple[Path, Fleet]) -> None:
    root, fleet = made
    assert all(scale.page_s(root, fleet, name) > 0 for name in scale.QUESTIONS)


def test_a_claim_about_coverage_takes_enough_ledgers_and_names_what_is_off() -> None:
    report = Report("coverage", quick=False, provenance="simulated")
    good = [Shown("good", 1.0, 0.0, 2.0 if n % 20 else 0.5) for n in range(300)]
    narrow = [Shown("narrow", 1.0, 0.0, 2.0 if n % 5 else 0.5) for n in range(300)]
    few = [Shown("few", 1.0, 0.0, 0.5) for _ in range(299)]
    never = [Shown("never", 1.0, 0.0, 2.0, never=True)]
    coverage._claim(report, "case", [*good, *narrow, *few, *never])
    assert {claim.name: (claim.value, claim.holds) for claim in report.claims} == {
        "good: coverage away from 95%": (0, True),
        "narrow: coverage away from 95%": (pytest.approx(15), False),
        "case: intervals shown where none is honest": (1, False),
    }
    # Clopper and Pearson's interval of 285 of 300.
    assert report.detail["good"]["chance_percent"] == pytest.approx([91.9, 97.2], abs=0.05)


@pytest.mark.parametrize("case", ["energy", "harm"])
def test_no_case_of_coverage_shows_a_dishonest_interval(case: str) -> None:
    simulation, _ = coverage.CASES[case]
    assert [shown for shown in simulation(np.random.default_rng(1)) if shown.never and shown.low is not None] == []


def test_every_kept_result_is_named_in_the_documents_or_the_newest_of_its_suite_and_machine() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    newest: dict[str, str] = {}
    for path in sorted(RESULTS.glob("*.json")):
        kind, _, rest = path.stem.partition("-2026")
        newest[kind] = max(newest.get(kind, ""), rest)
    kept = [path.name for path in RESULTS.glob("*.json") if path.name not in pages]
    assert [name for name in kept if not name.removesuffix(".json").endswith(tuple(newest.values()))] == []
