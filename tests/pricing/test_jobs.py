import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rose import events
from rose.ledger.files import examine
from rose.ledger.ledger import Ledger
from rose.ledger.upkeep.jobs import Settings, history, run_job
from rose.pricing import jobs
from rose.pricing.answers import run_report
from rose.pricing.jobs import planned
from rose.pricing.money import PricingError

WriteLedger = Callable[..., Path]
T0_NS = 1_780_272_000 * 10**9  # 2026-06-01T00:00:00Z


def test_only_what_is_set_up_is_planned(tmp_path: Path) -> None:
    assert [job.name for job in planned(Settings())] == ["compact", "roll-up", "audit"]
    every = planned(Settings(price_book="example", reports=tmp_path))
    assert [(job.name, job.every_s) for job in every[3:]] == [("report", 900)]


def test_the_job_is_recorded_with_what_it_did(sample: Path, tmp_path: Path) -> None:
    (job,) = [job for job in planned(Settings(reports=tmp_path, price_book="example")) if job.name == "report"]
    assert run_job(Ledger(sample), job).status == "ok"
    assert json.loads(history(Ledger(sample))["report"].result_json or "")["written"] == ["run_2026-06-01.json"]
    (bad,) = [job for job in planned(Settings(reports=tmp_path, price_book="nowhere.toml")) if job.name == "report"]
    assert "cannot read price book nowhere.toml" in (run_job(Ledger(sample), bad).error or "")


def ended(write_ledger: WriteLedger, sample_made: list[events.Event], run_id: str, **fields: Any) -> Path:
    made = [*sample_made, events.Run(action="ended", name="by hand", at_us=T0_NS // 1000 + 3_600_000_000)]
    return write_ledger(made, run_id=run_id, writer=f"w-{run_id.replace('/', '-')}", **fields)


@pytest.mark.long
def test_a_report_of_each_run_that_ended_and_of_the_newest_that_runs(
    write_ledger: WriteLedger, sample_made: list[events.Event], tmp_path: Path
) -> None:
    root = ended(write_ledger, sample_made, "a")
    write_ledger(sample_made, run_id="b", writer="w-b")
    later = [events.Run(action="started", name="older", at_us=T0_NS // 1000 - 1)]
    write_ledger(later, run_id="older", writer="w-older")
    folder = tmp_path / "reports"
    done = jobs.report(Ledger(root), folder=folder, price_book="example")
    assert (sorted(done["written"]), done["refused"]) == (["a_2026-06-01.json", "b_2026-06-01.json"], {})  # type: ignore[call-overload]
    assert json.loads((folder / "a_2026-06-01.json").read_text()) == json.loads(
        json.dumps(run_report.build(Ledger(root), "a", "example").to_json())
    )
    # The ended one is done; the running one goes on; a run that ended since is new.
    assert jobs.report(Ledger(root), folder=folder, price_book="example")["written"] == ["b_2026-06-01.json"]
    write_ledger([events.Run(action="ended", name="b", at_us=T0_NS // 1000 + 3_600_000_000)], run_id="b", writer="end")
    assert jobs.report(Ledger(root), folder=folder, price_book="example")["written"] == ["b_2026-06-01.json"]
    assert jobs.report(Ledger(root), folder=folder, price_book="example")["written"] == []
    # A report that was removed or damaged is written again.
    (folder / "a_2026-06-01.json").unlink()
    (folder / "b_2026-06-01.json").write_text("{")
    (folder / "other.json").write_text('{"mine": 1}')
    done = jobs.report(Ledger(root), folder=folder, price_book="example")
    assert sorted(done["written"]) == ["a_2026-06-01.json", "b_2026-06-01.json"]  # type: ignore[call-overload]
    # Another folder is another reader.
    assert len(jobs.report(Ledger(root), folder=tmp_path / "more", price_book="example")["written"]) == 2  # type: ignore[arg-type]


@pytest.mark.long
def test_a_report_s_csv_has_every_figure_with_what_it_must_carry(sample: Path, tmp_path: Path) -> None:
    jobs.report(Ledger(sample), folder=tmp_path, price_book="example")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        "run_2026-06-01.csv",
        "run_2026-06-01.json",
    ]
    rows = {row["figure"]: row for row in csv.DictReader(io.StringIO((tmp_path / "run_2026-06-01.csv").read_text()))}
    total = run_report.build(Ledger(sample)).section.figure("time", "fleet", "amortized")
    row = rows["report.time.fleet.amortized"]
    assert (row["value"], row["unit"], row["view"], row["currency"]) == (
        str(total.value),
        "nano_usd",
        "amortized",
        "USD",
    )
    assert (row["run_id"], row["provenance"], row["verified"]) == ("run", "replay", "True")
    assert "report.lines.blended.per accepted" in rows
    assert (tmp_path / "run_2026-06-01.json").read_text().count('"unit"') == len(rows)


def test_a_run_that_cannot_be_priced_is_named_each_time(write_ledger: WriteLedger, tmp_path: Path) -> None:
    root = write_ledger(
        [events.Run(action=action, name="empty", at_us=n + 1) for n, action in enumerate(("started", "ended"))]
    )
    for _ in range(2):
        done = jobs.report(Ledger(root), folder=tmp_path / "reports", price_book="example")
        assert done["written"] == []
        assert "no provisioned device time" in done["refused"]["run"]  # type: ignore[index]


def test_reports_read_again_nothing_that_was_verified(
    write_ledger: WriteLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        ends = [events.Run(action=action, name=name, at_us=n + 1) for n, action in enumerate(("started", "ended"))]
        root = write_ledger(ends, run_id=name, writer=name)
    Ledger(root).verify()
    examined, segment = list[str](), examine.segment

    def counted(content: bytes, sha256: str) -> examine.Segment:
        examined.append(sha256)
        return segment(content, sha256)

    monkeypatch.setattr(examine, "segment", counted)
    done = jobs.report(Ledger(root), folder=tmp_path / "reports", price_book="example")
    assert list(done["refused"]) == ["a", "b"]  # type: ignore[call-overload]
    assert examined == []


def test_no_report_of_a_ledger_that_does_not_verify(sample: Path, tmp_path: Path) -> None:
    path = sorted(sample.glob("live/test/*/*.parquet"))[-1]
    path.rename(path.with_name(f"{path.name.partition('-')[0]}-{'0' * 64}.parquet"))
    with pytest.raises(PricingError, match="does not verify"):
        jobs.report(Ledger(sample), folder=tmp_path / "reports", price_book="example")
    assert not (tmp_path / "reports").exists()


@pytest.mark.parametrize("run_id", ["../../up", "a b", "", ".hidden", "x" * 200])
def test_a_run_s_name_cannot_lead_out_of_the_folder(run_id: str) -> None:
    name = jobs._file_name(run_id)
    assert "/" not in name
    assert not name.startswith(".")
    assert len(name) <= 100
    assert jobs._file_name(f"{run_id}?") != name
    assert jobs._file_name("demo-20261121T131611Z") == "demo-20261121T131611Z"
