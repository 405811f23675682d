from __future__ import annotations

from pathlib import Path

import pytest

from rose.pricing.closing import store
from rose.pricing.closing.charge_algebra import BY
from rose.pricing.closing.restate import restate
from rose.pricing.closing.statement import state
from rose.pricing.money import PricingError
from tests.pricing.closing.conftest import BILL_NANO, CLOSE_ID, DEARER, NEXT_DAY_US, late_slice, write


@pytest.fixture(scope="module")
def corrected(closed_made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import shutil

    root = Path(shutil.copytree(closed_made, tmp_path_factory.mktemp("corrected") / "ledger"))
    write(root, [late_slice()], "late")
    assert restate(root, CLOSE_ID, "contract 18", DEARER, now_us=NEXT_DAY_US + 1)
    return root


def test_rows_sum_to_the_total_by_every_dimension(corrected: Path) -> None:
    closed = store.read(corrected, CLOSE_ID)
    for view in ("amortized", "fully-loaded"):
        for by in BY:
            if by == "work" and view == "amortized":
                with pytest.raises(PricingError, match="by 'work'"):
                    state(closed, [by], view)
                continue
            made = state(closed, [by, "bucket"] if by != "bucket" else [by], view)
            assert made.closed.value == BILL_NANO
            assert made.corrections.value == 360_000_000
            assert made.total.value == BILL_NANO + 360_000_000 == sum(int(line.cost.value or 0) for line in made.lines)
            assert made.total.view == view.replace("-", " ")


def test_a_statement_as_of_a_time_is_what_it_was(corrected: Path) -> None:
    made = state(store.read(corrected, CLOSE_ID, NEXT_DAY_US * 1000))
    assert (made.total.value, made.corrections.value) == (BILL_NANO, 0)
    assert {line.values[0]: line.cost.value for line in made.lines} == {
        "serving": 1_800_000_000,
        "rollout": 900_000_000,
        "idle": 600_000_000,
        "unaccounted": 300_000_000,
        "transfer": 200_000_000,
        "energy": 68_750_000,
    }
    document = made.to_json()
    assert document["postings"][0]["posted_by"] == "ann"
    assert document["postings"][0]["watermark"]["test"][0] == 16
    assert [line["bucket"] for line in document["lines"]][:2] == ["serving", "rollout"]


def test_fully_loaded_is_by_work(corrected: Path) -> None:
    made = state(store.read(corrected, CLOSE_ID, NEXT_DAY_US * 1000), ["work"], "fully-loaded")
    costs = {line.values[0]: int(line.cost.value or 0) for line in made.lines}
    assert set(costs) == {"serving", "rollout", "unaccounted"}
    # Idle and energy, $0.66875, go two to one to what serving and rollout time cost; the sync to rollout.
    assert costs == {"serving": 2_245_833_333, "rollout": 1_322_916_667, "unaccounted": 300_000_000}
    assert all(line.time is None for line in made.lines)
    with pytest.raises(PricingError, match="no view 'marginal'"):
        state(store.read(corrected, CLOSE_ID), view="marginal")
