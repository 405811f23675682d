from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from rose import events
from rose.ledger import catalog, examine
from rose.ledger.upkeep import books
from rose.ledger.upkeep.jobs import Settings, history, run_job
from rose.ledger.verify import verify
from rose.pricing import jobs
from rose.pricing.jobs import planned
from rose.pricing.money import PricingError
from rose.pricing.price_books import pricebook
from rose.pricing.run import report

WriteLedger = Callable[..., Path]
T0_NS = 1_780_272_000 * 10**9  # 2026-06-01T00:00:00Z
HOUR_NS = 3600 * 10**9


def days(root: Path) -> list[Any]:
    with books.connect(root) as connection:
        return connection.execute(
            'SELECT "day"::VARCHAR, device_id, bucket, ns, cost_nano, book_sha256 FROM price_day ORDER BY ALL'
        ).fetchall()


def device(device_id: str, action: Any, t_ns: int) -> events.Device:
    return events.Device(
        action=action, device_id=device_id, t_ns=t_ns, pool="serving", device_class="h100-sxm", at_us=t_ns // 1000
    )


def slice_(device_id: str, t0_ns: int, t1_ns: int, bucket: str) -> events.DeviceSlice:
    time = {f"{name}_ns": (t1_ns - t0_ns) * (name == bucket) for name in events.BUCKETS}
    return events.DeviceSlice(device_id=device_id, t0_ns=t0_ns, t1_ns=t1_ns, at_us=t1_ns // 1000, **time)


def priced_by(tmp_path: Path, usd_per_hour: str) -> str:
    """A price book like the example, but for the rate of every device."""
    text = resources.files("rose.pricing.price_books").joinpath("example.toml").read_text("utf-8")
    lines = [f"usd_per_hour = {usd_per_hour}" if x.startswith("usd_per_hour") else x for x in text.splitlines()]
    path = tmp_path / f"book-{usd_per_hour}.toml"
    path.write_text("\n".join(lines))
    return str(path)


def test_only_what_is_set_up_is_planned(tmp_path: Path) -> None:
    assert [job.name for job in planned(Settings())] == ["compact", "roll-up", "audit", "price"]
    every = planned(Settings(price_book="example", price_every_s=60, reports=tmp_path))
    assert [(job.name, job.every_s) for job in every[3:]] == [("price", 60), ("report", 900)]


@pytest.mark.long
def test_days_cost_what_the_run_s_report_says(sample: Path) -> None:
    book = pricebook.load("example")
    assert jobs.price(sample, price_book="example") == {
        "device_days": 2, "changed": 2, "price_book": f"{book.name} {book.version}"
    }  # fmt: skip
    totals: dict[str, int] = {}
    for day, _, bucket, _, cost_nano, sha256 in days(sample):
        assert (day, sha256) == ("2026-06-01", book.sha256)
        totals[bucket] = totals.get(bucket, 0) + cost_nano
    amortized = report.build(sample).amortized
    assert totals == {bucket: amortized[bucket].value for bucket in totals}
    assert sum(totals.values()) == amortized["total"].value
    with books.connect(sample) as connection:
        ((sha256, toml, currency),) = connection.execute("SELECT sha256, toml, currency FROM price_book").fetchall()
    assert (sha256, currency) == (book.sha256, "USD")
    assert pricebook.parse(toml, "kept").sha256 == book.sha256


def test_a_day_is_what_its_slices_report_and_begins_at_midnight_utc(write_ledger: WriteLedger, tmp_path: Path) -> None:
    midnight_ns = T0_NS + 24 * HOUR_NS
    root = write_ledger(
        [
            device("d", "joined", midnight_ns - 2 * HOUR_NS),
            slice_("d", midnight_ns - HOUR_NS, midnight_ns, "idle"),
            slice_("d", midnight_ns, midnight_ns + HOUR_NS, "serving"),
            slice_("d", midnight_ns + HOUR_NS, midnight_ns + 3 * HOUR_NS, "rollout"),
        ]
    )
    jobs.price(root, price_book=priced_by(tmp_path, "2"))
    assert [row[:5] for row in days(root)] == [
        ("2026-06-01", "d", "idle", HOUR_NS, 2_000_000_000),
        ("2026-06-01", "d", "unaccounted", HOUR_NS, 2_000_000_000),
        ("2026-06-02", "d", "rollout", 2 * HOUR_NS, 4_000_000_000),
        ("2026-06-02", "d", "serving", HOUR_NS, 2_000_000_000),
    ]


@pytest.mark.long
def test_days_whose_inputs_did_not_change_are_not_rewritten(
    write_ledger: WriteLedger, sample: Path, tmp_path: Path
) -> None:
    cheap, dear = priced_by(tmp_path, "2"), priced_by(tmp_path, "3")
    jobs.price(sample, price_book=cheap)
    file, before = sample / books.BOOKS, days(sample)
    inode = file.stat().st_ino
    assert jobs.price(sample, price_book=cheap)["changed"] == 0
    assert file.stat().st_ino == inode
    # More time on one device: its day alone is priced anew, and a bucket without time has no row.
    more = [device("s0", "left", T0_NS + 2 * HOUR_NS), slice_("s0", T0_NS + HOUR_NS, T0_NS + 2 * HOUR_NS, "train")]
    write_ledger(more, writer="later")
    assert jobs.price(sample, price_book=cheap)["changed"] == 1
    after = days(sample)
    assert set(before) < set(after)
    assert [row[1:4] for row in set(after) - set(before)] == [("s0", "train", HOUR_NS)]
    # The same prices in another file are the same prices.
    same = tmp_path / "same.toml"
    same.write_text(Path(cheap).read_text() + "\n# no other price\n")
    assert jobs.price(sample, price_book=str(same))["changed"] == 0
    assert jobs.price(sample, price_book=dear)["changed"] == 2
    assert {row[-1] for row in days(sample)} == {pricebook.load(dear).sha256}
    # Two hours of s0 and one of r0; what the syncs cost is the same.
    assert sum(row[4] for row in days(sample)) - sum(row[4] for row in after) == 3 * 1_000_000_000


@pytest.mark.long
def test_days_that_cannot_be_priced_change_nothing(write_ledger: WriteLedger, sample: Path) -> None:
    jobs.price(sample, price_book="example")
    before = (sample / books.BOOKS).read_bytes()
    write_ledger([slice_("ghost", T0_NS, T0_NS + HOUR_NS, "idle")], writer="later")
    with pytest.raises(PricingError, match=r"run run, ghost: slice .* outside the device's provisioned time"):
        jobs.price(sample, price_book="example")
    assert (sample / books.BOOKS).read_bytes() == before


def test_the_job_is_recorded_with_what_it_did(sample: Path) -> None:
    (job,) = [job for job in planned(Settings(price_book="example")) if job.name == "price"]
    assert run_job(sample, job).status == "ok"
    assert json.loads(history(sample)["price"].result_json or "")["changed"] == 2
    (bad,) = [job for job in planned(Settings(price_book="nowhere.toml")) if job.name == "price"]
    assert "cannot read price book nowhere.toml" in (run_job(sample, bad).error or "")


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
    done = jobs.report(root, folder=folder, price_book="example")
    assert (sorted(done["written"]), done["refused"]) == (["a_2026-06-01.json", "b_2026-06-01.json"], {})  # type: ignore[call-overload]
    assert json.loads((folder / "a_2026-06-01.json").read_text()) == json.loads(
        json.dumps(report.build(root, "a", "example").to_json())
    )
    # The ended one is done; the running one goes on; a run that ended since is new.
    assert jobs.report(root, folder=folder, price_book="example")["written"] == ["b_2026-06-01.json"]
    write_ledger([events.Run(action="ended", name="b", at_us=T0_NS // 1000 + 3_600_000_000)], run_id="b", writer="end")
    assert jobs.report(root, folder=folder, price_book="example")["written"] == ["b_2026-06-01.json"]
    assert jobs.report(root, folder=folder, price_book="example")["written"] == []
    with books.connect(root) as connection:
        kept = connection.execute("SELECT run_id, status, file FROM report_export ORDER BY run_id").fetchall()
    assert kept == [("a", "ended", "a_2026-06-01.json"), ("b", "ended", "b_2026-06-01.json")]
    # Another folder is another reader.
    assert len(jobs.report(root, folder=tmp_path / "more", price_book="example")["written"]) == 2  # type: ignore[arg-type]


@pytest.mark.long
def test_a_report_s_csv_has_every_figure_with_what_it_must_carry(sample: Path, tmp_path: Path) -> None:
    jobs.report(sample, folder=tmp_path, price_book="example")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        "run_2026-06-01.csv", "run_2026-06-01.json",
    ]  # fmt: skip
    rows = {row["figure"]: row for row in csv.DictReader(io.StringIO((tmp_path / "run_2026-06-01.csv").read_text()))}
    total = report.build(sample).amortized["total"]
    row = rows["amortized.total"]
    assert (row["value"], row["unit"], row["view"], row["currency"]) == (
        str(total.value), "nano_usd", "amortized", "USD",
    )  # fmt: skip
    assert (row["run_id"], row["provenance"], row["verified"]) == ("run", "replay", "True")
    assert "devices.0.cost" in rows
    assert (tmp_path / "run_2026-06-01.json").read_text().count('"unit"') == len(rows)


def test_a_run_that_cannot_be_priced_is_named_and_not_tried_again(write_ledger: WriteLedger, tmp_path: Path) -> None:
    root = write_ledger(
        [events.Run(action=action, name="empty", at_us=n + 1) for n, action in enumerate(("started", "ended"))]
    )
    done = jobs.report(root, folder=tmp_path, price_book="example")
    assert done["written"] == []
    assert "no provisioned device time" in done["refused"]["run"]  # type: ignore[index]
    assert jobs.report(root, folder=tmp_path, price_book="example")["refused"] == {}
    with books.connect(root) as connection:
        ((file, why),) = connection.execute("SELECT file, refused FROM report_export").fetchall()
    assert file is None
    assert "no provisioned device time" in why


def test_reports_read_again_nothing_that_was_verified(
    write_ledger: WriteLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every quarter of an hour, and for each run that ended: of a large ledger that is an hour each."""
    for name in ("a", "b"):
        ends = [events.Run(action=action, name=name, at_us=n + 1) for n, action in enumerate(("started", "ended"))]
        root = write_ledger(ends, run_id=name, writer=name)
    verify(root)
    examined, segment = list[str](), examine.segment

    def counted(content: bytes, sha256: str) -> examine.Segment:
        examined.append(sha256)
        return segment(content, sha256)

    monkeypatch.setattr(examine, "segment", counted)
    done = jobs.report(root, folder=tmp_path / "reports", price_book="example")
    assert list(done["refused"]) == ["a", "b"]  # type: ignore[call-overload]
    assert examined == []


def test_no_report_of_a_ledger_that_does_not_verify(sample: Path, tmp_path: Path) -> None:
    path = sorted(sample.glob("live/test/*/*.parquet"))[-1]
    path.rename(path.with_name(f"{path.name.partition('-')[0]}-{'0' * 64}.parquet"))
    with pytest.raises(PricingError, match="does not verify"):
        jobs.report(sample, folder=tmp_path / "reports", price_book="example")
    assert not (sample / books.BOOKS).exists()


@pytest.mark.parametrize("run_id", ["../../up", "a b", "", ".hidden", "x" * 200])
def test_a_run_s_name_cannot_lead_out_of_the_folder(run_id: str) -> None:
    name = jobs._file_name(run_id)
    assert "/" not in name
    assert not name.startswith(".")
    assert len(name) <= 100
    assert jobs._file_name(f"{run_id}?") != name
    assert jobs._file_name("demo-20261121T131611Z") == "demo-20261121T131611Z"


def test_every_day_is_found_in_the_views(sample: Path) -> None:
    """The names the books use are those of the ledger's views, so that the two can be joined."""
    jobs.price(sample, price_book="example")
    with catalog.connect(sample) as connection:
        connection.execute(f"ATTACH '{sample / books.BOOKS}' AS books (READ_ONLY)")
        joined = connection.execute(
            "SELECT count(*) FROM books.price_day JOIN daily_device_time USING (day, run_id, provenance, device_id)"
        ).fetchone()
    assert joined is not None
    assert joined[0] >= len(days(sample))
