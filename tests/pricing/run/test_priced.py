from collections.abc import Callable
from pathlib import Path

import pytest

from rose import events
from rose.ledger.files import catalog
from rose.ledger.ledger import Ledger
from rose.pricing.answers import run_report
from rose.pricing.answers.run_report import Report
from rose.pricing.money import PricingError
from rose.pricing.price_books.pricebook import PriceBookError
from rose.pricing.run.priced import PricedRun, priced
from rose.pricing.stats.bootstrap import Interval
from tests.pricing import any_event
from tests.pricing.any_ledger import slice_of
from tests.pricing.closing.conftest import write
from tests.pricing.conftest import T0_NS, joined


def test_a_run_is_priced_as_the_report_prices_it(priced_sample: PricedRun, sample_report: Report) -> None:
    run = priced_sample
    assert (run.run, run.stamp) == (sample_report.run, sample_report.stamp)
    assert run.run.began_ns == T0_NS
    assert run.cpm_usd == 2
    assert run.allocation.cost_nano_usd == sample_report.section.figure("time", "fleet", "amortized").value
    blended = sample_report.section.figure("lines", "blended", "1,000 accepted")
    assert run.make.money(1000 * sum(run.cost.paid.values()) / run.groups.accepted, "").value == blended.value
    figure = run.make.measure(0.5, "share", interval=Interval(low=0.25, high=None))
    assert (figure.text, figure.stamp) == ("50.0%", run.stamp)
    assert figure.short_interval == "25.0% to unbounded"
    nothing = run.make.measure(None, interval=Interval(low=0.25, high=1))
    assert (nothing.text, nothing.short_interval) == ("not enough data", "-")


def test_time_that_another_writer_reports_again_changes_no_figure(sample: Path, sample_report: Report) -> None:
    with catalog.connect(sample) as connection:
        select = "SELECT run_id, provenance, device_id, t0_ns FROM device_slice LIMIT 1"
        ((run_id, provenance, device_id, t0_ns),) = connection.execute(select).fetchall()
    write(sample, [slice_of(device_id, t0_ns, rollout=10**9)], "late", provenance, run_id)
    said, before = run_report.build(Ledger(sample), "run").to_json(), sample_report.to_json()
    for document in (said, before):
        del document["stamp"]
    assert said == before


def test_what_cannot_be_priced_is_refused(sample_kept: Path) -> None:
    for run_id in ("", "nope"):
        with pytest.raises(PricingError, match=f"no run '{run_id}'"), priced(Ledger(sample_kept), run_id):
            pass
    with (
        pytest.raises(PriceBookError, match="cannot read price book"),
        priced(Ledger(sample_kept), price_book="nowhere.toml"),
    ):
        pass


def test_a_run_of_tokens_without_device_time_is_refused(write_ledger: Callable[..., Path]) -> None:
    at_us = T0_NS // 1000
    turn = any_event.turn(
        trajectory_id="t", group_id="g", step=0, device_id="d0", policy_version=1, answer_tokens=1, at_us=at_us
    )
    root = write_ledger([joined("d0"), turn, events.Run(action="ended", name="r", at_us=at_us)])
    with pytest.raises(PricingError, match="has no device time yet"), priced(Ledger(root)):
        pass
