from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose import events
from rose.pricing.borrowing.spikes import (
    COUPLINGS,
    OBSERVED,
    ON_DEDICATED,
    R_STAR,
    WINDOW,
    WINDOWS,
    Coupled,
    Fleet,
    coupled,
    crossing,
    observed,
    pairing,
    spikes,
)
from rose.pricing.figures import Figure
from tests.pricing.conftest import S, joined, printed, section, us, work

FLEET = Fleet(device_s_per_window=100, window_s=60, usd_per_borrowed_s=0.01, usd_per_late_request=0.5, tokens_per_s=20)
shares = st.lists(st.floats(0, 1), min_size=5, max_size=5)


@given(shares, shares)
@settings(deadline=None, max_examples=5)
def test_sorted_is_the_worst_of_all_pairings(load: list[float], demand: list[float]) -> None:
    worst = max(sum(max(0.0, s + q - 1) for s, q in zip(load, order, strict=True)) for order in permutations(demand))
    last = coupled(np.array(load), np.array(demand), np.ones(5), FLEET)[-1]
    assert last.r == 1
    assert last.wasted_share * sum(demand) == pytest.approx(worst, abs=1e-9)


def test_two_windows_by_hand() -> None:
    # Busy with little demand and quiet with much: everything fits as it was, and half of it not once both are sorted.
    couplings = coupled(np.array([0.9, 0.1] * 20), np.array([0.1, 0.9] * 20), np.array([10.0, 2.0] * 20), FLEET)[-1]
    assert couplings.attainment == 0.5
    assert couplings.wasted_share == pytest.approx(0.8)
    # In a full window 0.8 of 0.9 of serving comes late, 80/9 of ten requests, beside 90 borrowed seconds; in the other
    # 10 s are borrowed and nothing is late.
    full, other = 0.9 + 80 / 18, 0.1
    assert couplings.tail_usd_per_hour == pytest.approx(full * 60)
    assert couplings.usd_per_token == pytest.approx((full + other) / (0.2 * 100 * 20))


def test_more_coupling_fits_less_and_costs_more() -> None:
    random = np.random.default_rng(3)
    load, demand = random.beta(2, 3, 500), random.beta(2, 4, 500)
    couplings = coupled(load, demand, 50 * load, FLEET)
    assert [coupling.r for coupling in couplings] == list(COUPLINGS)
    for name in ("usd_per_token", "wasted_share", "tail_usd_per_hour"):
        figures = [getattr(coupling, name) for coupling in couplings]
        assert figures == sorted(figures)
    assert couplings == coupled(load, demand, 50 * load, FLEET)
    # Independent: the share of windows that fit is that of all pairs.
    assert couplings[0].attainment == pytest.approx((load[:, None] + demand[None, :] <= 1).mean(), abs=0.01)


@pytest.mark.parametrize("r", [0, 0.25, 0.5, 0.75])
def test_ranks_are_coupled_as_asked(r: float) -> None:
    random = np.random.default_rng(1)
    pairs = [pairing(r, 400, random) for _ in range(30)]
    correlations = [observed(one.astype(float), other.astype(float)) or 0.0 for one, other in pairs]
    assert np.mean(correlations) == pytest.approx(r, abs=0.03)


def test_what_never_changes_has_no_correlation() -> None:
    assert observed(np.array([1.0, 2, 3]), np.array([2.0, 2, 2])) is None
    assert observed(np.array([1.0, 2, 3]), np.array([5.0, 6, 9])) == pytest.approx(1)
    assert observed(np.array([1.0, 2, 3]), np.array([9.0, 6, 5])) == pytest.approx(-1)
    couplings = coupled(np.zeros(40), np.zeros(40), np.zeros(40), FLEET)
    assert {(one.attainment, one.wasted_share, one.usd_per_token) for one in couplings} == {(1, 0, None)}


def at(r: float, usd: float | None) -> Coupled:
    return Coupled(r=r, attainment=1, wasted_share=0, usd_per_token=usd, tail_usd_per_hour=0)


def test_the_crossing_lies_on_the_line_between_couplings() -> None:
    couplings = [at(0, 1.0), at(0.25, 1.0), at(0.5, 2.0), at(1, 6.0)]
    assert crossing(couplings, 4) == 0.75
    assert crossing(couplings, 1) == 0.25
    assert crossing(couplings, 7) is None
    assert crossing(couplings, 0.5) is None
    assert crossing([at(0, None), at(1, 2.0)], 1) is None


def minutes(made: Sequence[events.Event], count: int) -> list[events.Event]:
    """The sample with its serving device's slices cut into minutes: load rises, and demand falls."""
    kept = [event for event in made if not isinstance(event, events.DeviceSlice) or event.device_id != "s0"]
    for n in range(count):
        serving_s, rollout_s = n, (59 - n) // 2
        kept.append(work("s0", n * 60, "L1", serving=serving_s, rollout=rollout_s, idle=60 - serving_s - rollout_s))
    return kept


def test_every_figure_says_that_it_is_simulated(sample_made: Sequence[events.Event], write_ledger: Any) -> None:
    answer = section(write_ledger(minutes(sample_made, 60)), spikes, "run")
    windows = {row["what"]: row["value"] for row in answer.table("windows").records()}
    assert (windows[WINDOWS].value, windows[WINDOW].value) == (60, 60 * S)
    # Demand falls by half a step for each step of load, so two windows at a time share a rank.
    assert windows[OBSERVED].value == pytest.approx(-1, abs=0.01)
    coupled = answer.table("coupled")
    for row in coupled.records():
        figures = [cell for cell in row.values() if isinstance(cell, Figure)]
        assert {(figure.stamp.provenance, figure.basis) for figure in figures} == {("simulated", "simulated")}
    assert windows[ON_DEDICATED].stamp.provenance == "replay"
    assert [row[0] for row in coupled.rows] == ["0", "0.25", "0.5", "0.75", "1"]
    worst = coupled.row("1")
    # Sorted, n serving seconds meet n // 2 rollout seconds: from n = 41 on they are more than a minute.
    beyond = [max(0, n + n // 2 - 60) for n in range(60)]
    assert worst["windows that fit"].value == pytest.approx(sum(x == 0 for x in beyond) / 60)
    assert worst["wasted"].value == pytest.approx(sum(beyond) / sum(n // 2 for n in range(60)))
    assert coupled.row("0")["per M answer tokens (C3)"].value is not None
    assert answer.paragraph("says").text.startswith("none in [0, 1]: borrowing is cheaper")
    assert "[marginal; USD, simulated, EXAMPLE PRICES" in printed(answer.parts.values())


def test_too_little_is_said(sample: Path, write_ledger: Any) -> None:
    made = [events.Run(action="started", name="short", at_us=us(0)), joined("s0"), work("s0", 0, serving=60)]
    write_ledger(made, root=sample, writer="short", run_id="short")
    answer = section(sample, spikes, "short")
    assert "coupled" not in answer.parts
    assert answer.figure("windows", R_STAR).value is None
    assert answer.paragraph("says").text == "not enough data: no token was made on borrowed devices"
