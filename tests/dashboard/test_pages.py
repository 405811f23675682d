from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rose import events
from rose.ledger import layout
from rose.ledger.writer import LedgerWriter
from tests.long_form import usual

PAGES = ("fleet", "cost_per_correct")
CHARTS = {"cost": 2, "cost_per_correct": 8, "bill": 1, "risk": 2, "preemptions": 9}


@pytest.mark.parametrize("page", usual(list(CHARTS)[::2], long=list(CHARTS)))
def test_a_page_shows_its_charts_and_says_that_the_run_is_simulated(
    page: str, ended: Path, open_page: Any, page_text: Any
) -> None:
    app = open_page(ended, page)
    assert not app.exception
    assert not app.error
    assert len(app.get("vega_lite_chart")) == CHARTS[page]
    assert any("SIMULATED" in warning.value for warning in app.warning)
    assert "Source" in page_text(app)


@pytest.mark.long
@pytest.mark.parametrize("page", ["cost", "bill"])
def test_a_ledger_without_runs_is_waited_for(page: str, tmp_path: Path, open_page: Any, kit: Any) -> None:
    root = layout.create(tmp_path / "ledger")
    app = open_page(root, page)
    assert not app.exception
    assert "holds no run yet" in app.info[0].value
    kit.write(root, kit.a_run())
    app.run()
    assert not app.exception
    assert app.get("vega_lite_chart")


@pytest.mark.long
@pytest.mark.parametrize("page", [*PAGES, "risk"])
def test_a_run_that_has_only_begun_gets_words_and_no_traceback(
    page: str, tmp_path: Path, open_page: Any, kit: Any, page_text: Any
) -> None:
    app = open_page(kit.write(tmp_path / "ledger", [kit.started()]), page)
    assert not app.exception
    assert "going on" in page_text(app)
    assert app.info or app.error
    assert not app.metric


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES)
def test_a_page_follows_a_writer(
    page: str, tmp_path: Path, open_page: Any, kit: Any, values: Any, page_text: Any
) -> None:
    root = tmp_path / "ledger"
    with LedgerWriter.open(root, "live", "run", "live", flush_interval_s=0.05) as ledger:

        def record(made: list[events.Event]) -> None:
            for event in made:
                ledger.record(event, durable=False)
            ledger.flush()

        record([kit.started(), *kit.joined(), *kit.a_step(0)])
        app = open_page(root, page)
        assert not app.exception
        before = (page_text(app), values(app), [len(frame.value) for frame in app.dataframe])
        record(kit.a_step(1))
        app.run()
        assert not app.exception
        assert not any("SIMULATED" in warning.value for warning in app.warning)
        assert (page_text(app), values(app), [len(frame.value) for frame in app.dataframe]) != before
        record([*kit.left(60), events.Run(action="ended", name="little fleet", at_us=kit.us(60))])
        app.run()
        assert not app.exception
        assert "ended" in page_text(app)
        assert "going on" not in page_text(app)


@pytest.mark.parametrize("page", ["cost_per_correct", "risk"])
def test_no_figure_is_made_of_events_of_different_provenance(
    page: str, tmp_path: Path, open_page: Any, kit: Any
) -> None:
    root = kit.write(tmp_path / "ledger", kit.a_run())
    kit.write(root, kit.slices(3), writer="other", provenance="live")
    app = open_page(root, page)
    assert not app.exception
    assert "live and simulated" in app.error[0].value
    assert not app.metric
    assert not app.get("vega_lite_chart")


@pytest.mark.long
def test_the_newest_run_comes_first_and_another_can_be_chosen(
    tmp_path: Path, open_page: Any, kit: Any, page_text: Any, choose: Any
) -> None:
    root = kit.write(tmp_path / "ledger", kit.a_run(), run_id="old")
    kit.write(root, [kit.started("measured", after_s=500)], run_id="new", provenance="live")
    app = open_page(root, "risk")
    assert "measured" in page_text(app)
    assert "not heard of since **2026-06-01 00:08:20 UTC**" in page_text(app)
    assert not any("SIMULATED" in warning.value for warning in app.warning)
    app = choose(app, "Run", "old")
    assert any("SIMULATED" in warning.value for warning in app.warning)
    assert "old" in page_text(app)


@pytest.mark.long
def test_a_ledger_that_does_not_verify_is_priced_only_on_demand_and_marked(
    ended: Path, tmp_path: Path, open_page: Any, values: Any, page_text: Any
) -> None:
    root = tmp_path / "ledger"
    shutil.copytree(ended, root)
    # A lost second writer: its head says that a segment was there.
    (root / "heads" / "gone.json").write_text('{"segment": "live/gone/000000/000001-' + "0" * 64 + '.parquet"}')
    app = open_page(root)
    assert not app.exception
    assert len([error for error in app.error if "This ledger does not verify" in error.value]) == 1
    assert not app.metric
    app.checkbox[0].check().run()
    assert any("UNVERIFIED" in warning.value for warning in app.warning)
    assert "UNVERIFIED" in app.caption[-1].value or "UNVERIFIED" in page_text(app)
    assert values(app)["Rollout cost"] == values(open_page(ended))["Rollout cost"]


def test_a_missing_view_is_said_and_not_a_traceback(
    ended: Path, open_page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import streamlit as st

    from rose.ledger import catalog

    st.cache_data.clear()
    connect = catalog.connect

    def without_views(root: Any) -> Any:
        """A catalog of a version that had none of today's views."""
        connection = connect(root)
        connection.execute("CREATE SCHEMA memory.bare; USE memory.bare")
        return connection

    monkeypatch.setattr(catalog, "connect", without_views)
    app = open_page(ended, "fleet")
    assert not app.exception
    assert "view of the ledger is missing" in app.error[0].value


def test_no_ledger_at_all_is_said(tmp_path: Path, open_page: Any) -> None:
    app = open_page(tmp_path / "nothing")
    assert not app.exception
    assert "is not a ledger" in app.error[0].value
